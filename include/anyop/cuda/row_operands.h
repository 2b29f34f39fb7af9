/* SPDX-License-Identifier: Apache-2.0 */
/* What the row scheme of CUDA kernels (cuda/row.h) reads and writes: rows and columns of tensors.
 */
#ifndef ANYOP_CUDA_ROW_OPERANDS_H_
#define ANYOP_CUDA_ROW_OPERANDS_H_

#include <type_traits>

#include "anyop/cuda/rows.h"
#include "anyop/cuda/walk.h"

namespace anyop::cuda {

// ---- operands ----

template <typename T>
constexpr AnyopDtype kDtypeOf = sizeof(T) == 8                          ? kAnyopFloat64
                                : sizeof(T) == 4                        ? kAnyopFloat32
                                : std::is_same<T, __nv_bfloat16>::value ? kAnyopBFloat16
                                                                        : kAnyopFloat16;

// Where the rows of a tensor lie. kAny: at any strides and places, and of any floating dtype; else
// in vectors of 16 bytes, one stride apart, of the kernel's type.
template <bool kAny>
struct RowsAt;

template <>
struct RowsAt<false> {
  char* data = nullptr;
  int64_t row_bytes = 0;

  static constexpr bool aligned = true;
  explicit operator bool() const { return data != nullptr; }
  __device__ bool exists() const { return data != nullptr; }
  __device__ char* At(int64_t row) const { return data + row * row_bytes; }
  template <typename T>
  __device__ bool IsOf() const {
    return true;
  }
  __device__ AnyopDtype dtype() const { return kAnyopNoDtype; }
};

template <>
struct RowsAt<true> {
  Rows<char> rows = {};
  int64_t step = 1;  // from element to element of a row
  int item_bytes = 0;
  AnyopDtype kind = kAnyopNoDtype;
  bool aligned = false;

  __device__ bool exists() const { return rows.data != nullptr; }
  __device__ char* At(int64_t row) const {
    return rows.data + (rows[row] - rows.data) * item_bytes;
  }
  template <typename T>
  __device__ bool IsOf() const {
    return kind == kDtypeOf<T>;
  }
  __device__ AnyopDtype dtype() const { return kind; }
};

// NULL: an operand that is not there.
template <bool kAny>
RowsAt<kAny> PlaceRows(const AnyopTensor* tensor) {
  RowsAt<kAny> at;
  if (!tensor) return at;
  const Rows<char> rows = RowsOf<char>(tensor);
  const int item_bytes = tensor->dtype_bits / 8;
  if constexpr (kAny) {
    at.rows = rows;
    at.step = tensor->shape[tensor->ndim - 1] == 1 ? 1 : tensor->strides[tensor->ndim - 1];
    at.item_bytes = item_bytes;
    at.kind = AnyopDtypeOf(tensor);
    const int64_t per = 16 / item_bytes;
    at.aligned =
        at.step == 1 && IsAligned(rows.data, 16) && tensor->shape[tensor->ndim - 1] % per == 0;
    for (int d = 0; d < rows.ndim; ++d) at.aligned = at.aligned && rows.step[d] % per == 0;
  } else {
    at.data = rows.data;
    at.row_bytes = rows.stride * item_bytes;
  }
  return at;
}

struct RowShape {
  int64_t rows, D;
};

// How rows can be read and written. What is read in rows alone decides how sums are made: the bits
// do not depend on where the results go.
struct RowsFit {
  bool columns = false;    // rows lie side by side, and their elements apart
  bool vectors = true;     // read: of the kernel's type, aligned to 16 bytes
  bool one_stride = true;  // read
  bool plain = true;       // written: both; columns: aligned
};
template <typename T, size_t kRead, size_t kWritten, size_t kColumns = 1>
RowsFit FitRows(RowShape shape, const AnyopTensor* const (&read)[kRead],
                const AnyopTensor* const (&written)[kWritten],
                const AnyopTensor* const (&columns)[kColumns] = {nullptr}) {
  RowsFit fit;
  const auto look = [&](const AnyopTensor* tensor, bool* in_vectors, bool* one_stride) {
    if (!tensor) return;
    const RowsAt<true> at = PlaceRows<true>(tensor);
    *in_vectors = *in_vectors && at.kind == kDtypeOf<T> && at.aligned;
    *one_stride = *one_stride && at.rows.HasOneStride();
    fit.columns = fit.columns || at.step != 1;
  };
  for (const AnyopTensor* tensor : read) look(tensor, &fit.vectors, &fit.one_stride);
  for (const AnyopTensor* tensor : written) look(tensor, &fit.plain, &fit.plain);
  for (const AnyopTensor* tensor : columns)
    fit.plain = fit.plain && (!tensor || IsAligned(static_cast<const char*>(tensor->data), 16));
  fit.vectors = fit.vectors && shape.D % kPerVector<T> == 0;
  return fit;
}

// One value a column, the same for all rows: data[d] + add; without data, `add`. kAny: at any
// place, else aligned to 16 bytes. kAdds: otherwise data[d], or 0.
template <typename T, bool kAny, bool kAdds = true>
struct ColumnsAt {
  using Type = T;
  static constexpr bool kAnywhere = kAny;
  const T* data;
  Wide<T> add;

  template <typename W>
  __device__ W Plus(W v) const {
    return kAdds ? v + static_cast<W>(add) : v;
  }
  __device__ bool aligned() const { return !kAny || reinterpret_cast<uintptr_t>(data) % 16 == 0; }
};
// Elements of any floating dtype, most of them T: what kernels with kAny read, so that there need
// not be one for each type of columns.
template <typename T>
struct AnyFloating {};
template <typename T, typename Columns, bool kAny>
using ColumnOf = std::conditional_t<kAny, AnyFloating<T>, Columns>;

template <typename T, bool kAdds>
struct ColumnsAt<AnyFloating<T>, true, kAdds> {
  using Type = AnyFloating<T>;
  static constexpr bool kAnywhere = true;
  const char* data;
  Wide<T> add;
  AnyopDtype kind;

  template <typename W>
  __device__ W Plus(W v) const {
    return kAdds ? v + static_cast<W>(add) : v;
  }
  __device__ bool aligned() const { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }
};

// Columns: of the tensor's own type. T: the kernel's.
template <typename T, typename Columns, bool kAny, bool kAdds = true>
auto PlaceColumns(const AnyopTensor* tensor, double add) {
  using At = ColumnsAt<ColumnOf<T, Columns, kAny>, kAny, kAdds>;
  const auto rounded = static_cast<Wide<Columns>>(add);
  if constexpr (kAny) {
    return tensor ? At{static_cast<const char*>(tensor->data), static_cast<Wide<T>>(rounded),
                       AnyopDtypeOf(tensor)}
                  : At{nullptr, static_cast<Wide<T>>(rounded), kAnyopNoDtype};
  } else {
    return At{tensor ? static_cast<const Columns*>(tensor->data) : nullptr, rounded};
  }
}
template <typename T, typename Columns, bool kAny>
auto PlaceColumns(const AnyopTensor* tensor) {
  return PlaceColumns<T, Columns, kAny, false>(tensor, 0);
}
template <typename T, typename Columns, bool kAny>
auto PlaceColumns(const AnyopTensor* tensor, double offset, double absent) {
  return PlaceColumns<T, Columns, kAny, true>(tensor, tensor ? offset : absent + offset);
}

// Rows of flags: bool, or any byte but 0; those of a mask may be repeated.
struct FlagsAt {
  Rows<char> rows = {};
  Divisor by_size[Rows<char>::kMaxRank];
  int64_t step = 1;
  int together = 1;   // so many lie side by side and aligned
  bool small = true;  // rows have numbers below 2^31

  __device__ bool exists() const { return rows.data != nullptr; }
  __device__ const char* At(int64_t row) const {
    if (!small || rows.ndim <= 1) return rows[row];
    uint32_t left = static_cast<uint32_t>(row);
    int64_t offset = 0;
#pragma unroll 1
    for (int d = rows.ndim - 1; d > 0; --d) {
      const uint32_t next = by_size[d].Divide(left);
      offset += (left - next * by_size[d].value) * rows.step[d];
      left = next;
    }
    return rows.data + offset + left * rows.step[0];
  }
};
inline FlagsAt PlaceFlags(const AnyopTensor* tensor) {
  FlagsAt at;
  if (!tensor) return at;
  const int last = tensor->ndim - 1;
  at.rows = RowsOf<char>(tensor);
  at.step = tensor->shape[last] == 1 ? 1 : tensor->strides[last];
  int64_t count = 1;
  for (int d = 0; d < at.rows.ndim; ++d) count *= at.rows.size[d];
  at.small = count < INT64_C(0x7fffffff);
  for (int d = 0; at.small && d < at.rows.ndim; ++d) at.by_size[d] = Divisor(at.rows.size[d]);
  for (at.together = 8; at.together > 1; at.together /= 2) {
    bool fits = at.step == 1 && IsAligned(at.rows.data, at.together);
    for (int d = 0; d < at.rows.ndim; ++d) fits = fits && at.rows.step[d] % at.together == 0;
    if (fits) break;
  }
  return at;
}

// Rows in an order in which a mask's rows are soon used again: of (outer, repeats, inner), tiles of
// some inner rows, and in each the repeats.
struct RowOrder {
  Divisor by_repeats, by_tiles;
  uint32_t shift = 0;  // log2 of a tile's rows

  explicit RowOrder(const FlagsAt& flags) {
    int64_t inner = 1;
    for (int d = flags.rows.ndim - 1; d >= 0 && flags.small; --d) {
      if (flags.rows.step[d] == 0 && inner > 1) {
        while (shift < 6 && inner % (int64_t{2} << shift) == 0) ++shift;
        by_repeats = Divisor(flags.rows.size[d]);
        by_tiles = Divisor(inner >> shift);
        return;
      }
      inner *= flags.rows.size[d];
    }
  }
  __device__ int64_t At(int64_t place) const {
    if (by_repeats.value == 1) return place;
    const uint32_t n = static_cast<uint32_t>(place) >> shift;
    const uint32_t tile = by_repeats.Divide(n), outer = by_tiles.Divide(tile);
    const uint32_t repeat = n - tile * by_repeats.value, of_inner = tile - outer * by_tiles.value;
    const int64_t first = int64_t{outer * by_repeats.value + repeat} * by_tiles.value + of_inner;
    return (first << shift) + (place & ((1 << shift) - 1));
  }
};

// kPer flags of a piece: the high bits of bytes.
template <int kPer>
struct Flags {
  unsigned marks[(kPer + 3) / 4] = {};
  __device__ bool operator[](int k) const { return marks[k / 4] >> (k % 4 * 8 + 7) & 1; }
};
template <int kVectors, int kPer>
struct HeldFlags {
  Flags<kPer> of[kVectors];
};
// Whether a column lies behind the first n.
struct BehindFlags {
  int64_t n;
  __device__ bool operator[](int k) const { return k >= n; }
  __device__ BehindFlags From(int64_t at) const { return {n - at}; }
};

struct StreamedFlags {
  const FlagsAt& flags;
};

// ---- elements ----

// kPer flags of a row from a place that is a multiple of kPer; none where there are none.
template <int kPer>
__device__ Flags<kPer> ReadFlags(const FlagsAt& flags, const char* row, int64_t at) {
  Flags<kPer> found;
  if (!flags.exists()) return found;
  if (kPer >= 4 && flags.together >= kPer) {
    const auto words = *reinterpret_cast<const Vector<unsigned, (kPer + 3) / 4>*>(row + at);
#pragma unroll
    for (int k = 0; k < kPer; k += 4) {
      const unsigned word = words.at[k / 4];
      found.marks[k / 4] = (((word & 0x7f7f7f7fu) + 0x7f7f7f7fu) | word) & 0x80808080u;
    }
    return found;
  }
#pragma unroll 1
  for (int k = 0; k < kPer; ++k) {
    const unsigned mark = row[(at + k) * flags.step] != 0 ? 0x80u : 0;
#pragma unroll
    for (int w = 0; w < (kPer + 3) / 4; ++w) found.marks[w] |= k / 4 == w ? mark << k % 4 * 8 : 0;
  }
  return found;
}
// The vector with `value` where there is a flag.
template <typename T>
__device__ uint4 Replace(const uint4& bits, const Flags<kPerVector<T>>& flags, const uint4& value) {
  const unsigned from[4] = {bits.x, bits.y, bits.z, bits.w};
  const unsigned other[4] = {value.x, value.y, value.z, value.w};
  unsigned to[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    unsigned all;  // ones where the mark is set
    if constexpr (sizeof(T) == 2) {
      const unsigned marks = flags.marks[i / 2];
      all = i % 2 ? SpreadMarks<0xbbaa>(marks) : SpreadMarks<0x9988>(marks);
    } else {
      const unsigned marks = flags.marks[0];
      all = i == 0   ? SpreadMarks<0x8888>(marks)
            : i == 1 ? SpreadMarks<0x9999>(marks)
            : i == 2 ? SpreadMarks<0xaaaa>(marks)
                     : SpreadMarks<0xbbbb>(marks);
    }
    to[i] = (from[i] & ~all) | (other[i] & all);
  }
  return make_uint4(to[0], to[1], to[2], to[3]);
}

template <typename W>
__device__ W ReadFloating(const char* data, int64_t at, AnyopDtype dtype) {
  switch (dtype) {
    case kAnyopFloat16:
      return static_cast<W>(Widen(reinterpret_cast<const __half*>(data)[at]));
    case kAnyopBFloat16:
      return static_cast<W>(Widen(reinterpret_cast<const __nv_bfloat16*>(data)[at]));
    case kAnyopFloat64:
      return static_cast<W>(reinterpret_cast<const double*>(data)[at]);
    default:
      return static_cast<W>(reinterpret_cast<const float*>(data)[at]);
  }
}
template <typename W>
__device__ void WriteFloating(char* data, int64_t at, AnyopDtype dtype, W v) {
  switch (dtype) {
    case kAnyopFloat16:
      reinterpret_cast<__half*>(data)[at] = Narrow<__half>(static_cast<float>(v));
      return;
    case kAnyopBFloat16:
      reinterpret_cast<__nv_bfloat16*>(data)[at] = Narrow<__nv_bfloat16>(static_cast<float>(v));
      return;
    case kAnyopFloat64:
      reinterpret_cast<double*>(data)[at] = static_cast<double>(v);
      return;
    default:
      reinterpret_cast<float*>(data)[at] = static_cast<float>(v);
  }
}

// kPer elements from a place that is a multiple of kPer, by as many loads of 16 bytes as they take.
template <int kPer, typename W, typename Columns>
__device__ Piece<W, kPer> ReadColumns(const Columns& columns, int64_t at) {
  using T = typename Columns::Type;
  Piece<W, kPer> piece;
  constexpr int kOfLoad = kPer < kPerVector<T> ? 1 : kPerVector<T>;
#pragma unroll
  for (int k = 0; k < kPer; k += kOfLoad) {
    Piece<Wide<T>, kOfLoad> some = {};
    if (columns.data) some = ReadPiece<kOfLoad>(columns.data + at + k, columns.aligned());
#pragma unroll
    for (int j = 0; j < kOfLoad; ++j) piece.at[k + j] = columns.Plus(static_cast<W>(some.at[j]));
  }
  return piece;
}

// Of another dtype than the kernel's, or not aligned: as WriteConverted, apart from the loops.
template <typename W, int kPer>
__device__ __attribute__((noinline)) Piece<W, kPer> ReadConverted(const char* data, int64_t at,
                                                                  AnyopDtype dtype) {
  Piece<W, kPer> piece;
  if (dtype == kAnyopFloat32) {
    const auto* from = reinterpret_cast<const float*>(data) + at;
    const bool aligned = reinterpret_cast<uintptr_t>(from) % 16 == 0;
#pragma unroll
    for (int k = 0; k < kPer; k += 4) {
      const Piece<float, 4> some = ReadPiece<4>(from + k, aligned);
#pragma unroll
      for (int j = 0; j < 4; ++j) piece.at[k + j] = some.at[j];
    }
  } else {
#pragma unroll
    for (int k = 0; k < kPer; ++k) piece.at[k] = ReadFloating<W>(data, at + k, dtype);
  }
  return piece;
}
template <int kPer, typename W, typename T, bool kAdds>
__device__ Piece<W, kPer> ReadColumns(const ColumnsAt<AnyFloating<T>, true, kAdds>& columns,
                                      int64_t at) {
  Piece<W, kPer> piece = {};
  if (columns.data) {
    if constexpr (kPer == 1) {
      piece.at[0] = ReadFloating<W>(columns.data, at, columns.kind);
    } else if (columns.kind == kDtypeOf<T> && columns.aligned()) {
      piece = ReadPiece<kPer>(reinterpret_cast<const T*>(columns.data) + at, true);
    } else {
      piece = ReadConverted<W, kPer>(columns.data, at, columns.kind);
    }
  }
#pragma unroll
  for (int k = 0; k < kPer; ++k) piece.at[k] = columns.Plus(piece.at[k]);
  return piece;
}

// kPer elements of a row: 16 bytes of T, or one of any dtype. kAligned: the 16 bytes are known to
// be, as those of rows that are read are (RowsFit::vectors).
template <typename T, int kPer, bool kAligned>
__device__ Piece<Wide<T>, kPer> ReadPieceOf(const RowsAt<true>& rows, const char* from,
                                            int64_t at) {
  if constexpr (kPer == 1) {
    return {{ReadFloating<Wide<T>>(from, at * rows.step, rows.dtype())}};
  } else {
    return ReadPiece<kPer>(reinterpret_cast<const T*>(from) + at, kAligned || rows.aligned);
  }
}
// Of another dtype than the kernel's, or not aligned: rare, and apart from the loops. As many
// copies as these have turns took most of a compiler's time.
template <typename W, int kPer>
__device__ __attribute__((noinline)) void WriteConverted(char* data, int64_t at, int64_t step,
                                                         AnyopDtype dtype, Piece<W, kPer> v) {
#pragma unroll
  for (int k = 0; k < kPer; ++k) WriteFloating<W>(data, (at + k) * step, dtype, v.at[k]);
}
template <typename T, int kPer>
__device__ void WritePieceOf(const RowsAt<true>& rows, char* row, int64_t at,
                             const Piece<Wide<T>, kPer>& v) {
  if constexpr (kPer == 1) {
    WriteFloating<Wide<T>>(row, at * rows.step, rows.dtype(), v.at[0]);
  } else if (rows.IsOf<T>() && rows.aligned) {
    WritePiece<kPer>(reinterpret_cast<T*>(row) + at, true, v);
  } else {
    WriteConverted(row, at, rows.step, rows.dtype(), v);
  }
}

}  // namespace anyop::cuda

#endif  // ANYOP_CUDA_ROW_OPERANDS_H_
