/* SPDX-License-Identifier: Apache-2.0 */
/* The row scheme of CUDA kernels: an operator says what happens to one row, and each row is read
   from memory once. */
#ifndef ANYOP_CUDA_ROW_H_
#define ANYOP_CUDA_ROW_H_

#include "anyop/cuda_row_operands.h"

// An operator is a struct of its operands with one function, which all threads of a row run:
//
//   template <typename Row>
//   __device__ void operator()(Row& row) const {
//     const auto v = row.Read(x);
//     const W squares = row.Sum([](W sum, W v) { return MulAdd(v, v, sum); }, v);
//     const W scale = ReciprocalRoot(MulAdd(squares, inverse_D, eps));
//     row.Write(out, [=](W v, W w) { return v * scale * w; }, v, row.Columns(weight));
//   }
//
// RunRows chooses who the threads are. Rows of up to kMaxHeld vectors of 16 bytes lie in registers,
// shared by 1 to 32 lanes of a warp or by a block; longer ones, and those that are not aligned or
// of several dtypes, are read again for each Sum, Max and Write, from the second cache.
namespace anyop::cuda {

// ---- a row in registers ----

// A thread holds pieces lane, lane + lanes, ... of 16 bytes of each row that it reads.
template <typename T, int kVectors>
struct HeldRow {
  uint4 bits[kVectors];
};
// The same for the second time: the compiler would keep the elements of the first across a barrier.
template <typename T, int kVectors>
struct HeldAgain {
  const HeldRow<T, kVectors>& held;
};
template <typename T, int kVectors>
struct HeldColumns {
  static constexpr bool kEarly = kVectors <= 4;  // loaded while the threads meet
  const ColumnsAt<T>& columns;
  uint4 bits[kEarly ? kVectors : 1];
};

// kSliced: a block holds a part of its rows, that of its blockIdx.y, for an operator that does not
// join all of a row.
template <typename T, int kVectors, bool kSliced = false>
class RegisterRow : public RowTeam<Wide<T>> {
 public:
  using W = Wide<T>;
  static constexpr int kPer = kPerVector<T>;

  __device__ RegisterRow(int lanes, Partials<W>& partials, int64_t D)
      : RowTeam<W>(lanes, partials), vectors_(static_cast<int>(D / kPer)) {}
  __device__ void Take(int64_t row, int64_t rows) {
    RowTeam<W>::Take(row, rows);
    mine_ = this->inside_ ? vectors_ : 0;
  }
  // Of the row that was taken, what comes next sees the first n columns alone, in whole pieces.
  __device__ void Keep(int64_t n) {
    if (this->inside_) mine_ = static_cast<int>((n + kPer - 1) / kPer);
  }

  template <bool kAny>
  __device__ HeldRow<T, kVectors> Read(const RowsAt<kAny>& from) const {
    HeldRow<T, kVectors> held;
    const auto* row = reinterpret_cast<const uint4*>(from.At(this->inside_ ? this->index_ : 0));
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      held.bits[i] = {};
      if (At(i) < mine_) held.bits[i] = LoadNow(row + At(i));
    }
    return held;
  }
  __device__ HeldFlags<kVectors> Read(const FlagsAt& from) const {
    HeldFlags<kVectors> held;
    const char* row = from.rows.At(this->inside_ ? this->index_ : 0);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      held.bits[i] = 0;
      if (At(i) < mine_) held.bits[i] = ReadFlags<kPer>(from, row, int64_t{At(i)} * kPer);
    }
    return held;
  }
  __device__ BehindFlags Behind(int64_t n) const { return {n}; }
  // For a second Sum.
  __device__ HeldAgain<T, kVectors> Again(const HeldRow<T, kVectors>& held) const { return {held}; }

  template <typename TW>
  __device__ HeldColumns<TW, kVectors> Columns(const ColumnsAt<TW>& from) const {
    HeldColumns<TW, kVectors> columns{from, {}};
    if constexpr (IsEarly<TW>()) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (from.data && At(i) < mine_)
          columns.bits[i] = LoadAt(from.data + int64_t{At(i)} * kPer, from.aligned);
      }
    }
    return columns;
  }

  // Sum over the row: sum = f(sum, elements...).
  template <typename F, typename... Held>
  __device__ W Sum(const F& f, const Held&... held) {
    return this->Total(Fold(W(0), f, held...));
  }
  template <typename F, typename... Held>
  __device__ W Max(const F& f, const Held&... held) {
    return this->Greatest(Fold(
        static_cast<W>(-INFINITY), [&](W most, auto... v) { return fmax(most, f(v...)); },
        held...));
  }
  // Of this thread alone.
  template <typename F, typename... Held>
  __device__ W Fold(W start, const F& f, const Held&... held) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (At(i) < mine_) start = FoldPiece(start, f, Elements(held, i)...);
    }
    return start;
  }

  // out[d] = f(elements...)
  template <bool kAny, typename F, typename... Held>
  __device__ void Write(const RowsAt<kAny>& out, const F& f, const Held&... held) const {
    if (!this->inside_) return;
    char* row = out.At(this->index_);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (At(i) < mine_) WritePieceAt(out, row, int64_t{At(i)} * kPer, Apply(f, Later(held, i)...));
    }
  }
  // Zeros behind what Keep left.
  template <bool kAny>
  __device__ void WriteRest(const RowsAt<kAny>& out) const {
    if (!this->inside_) return;
    char* row = out.At(this->index_);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (At(i) >= mine_ && At(i) < vectors_)
        WritePieceAt(out, row, int64_t{At(i)} * kPer, Unpacked<T>{});
    }
  }
  // use(d, most, pieces...), most being what join makes of f(0, elements...) of `group` columns: a
  // power of two of pieces that divides the threads of the row; 0: no groups, and most is 0.
  template <typename F, typename Join, typename Use, typename... Held>
  __device__ void EachGroup(int64_t group, const F& f, const Join& join, const Use& use,
                            const Held&... held) const {
    const int lanes = static_cast<int>(group / kPer);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const bool there = At(i) < mine_;
      const auto each = [&](const auto&... pieces) {
        W most = there && group ? FoldPiece(W(0), f, pieces...) : W(0);
        most = this->JoinLanes(most, lanes, join);
        if (there) use(int64_t{At(i)} * kPer, most, pieces...);
      };
      each(Later(held, i)...);
    }
  }
  // Writes it too, and holds what was written, rounded. out is of the kernel's type.
  template <bool kAny, typename F, typename... Held>
  __device__ HeldRow<T, kVectors> WriteAndHold(const RowsAt<kAny>& out, const F& f,
                                               const Held&... held) const {
    HeldRow<T, kVectors> made;
    char* row = out.At(this->inside_ ? this->index_ : 0);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      made.bits[i] = Pack<T>(Apply(f, Elements(held, i)...));
      if (At(i) < mine_)
        StoreAt(reinterpret_cast<T*>(row) + int64_t{At(i)} * kPer, out.aligned, made.bits[i]);
    }
    return made;
  }

 protected:
  template <typename TW>
  static constexpr bool IsEarly() {
    return HeldColumns<TW, kVectors>::kEarly && sizeof(TW) == sizeof(T);
  }
  __device__ int At(int i) const {
    const int at = this->lane() + i * this->lanes_;
    return kSliced ? at + static_cast<int>(blockIdx.y) * kVectors * this->lanes_ : at;
  }

  __device__ Unpacked<T> Elements(const HeldRow<T, kVectors>& held, int i) const {
    return Unpack<T>(held.bits[i]);
  }
  __device__ Unpacked<T> Elements(const HeldAgain<T, kVectors>& again, int i) const {
    return kVectors <= 2 ? Unpack<T>(again.held.bits[i]) : UnpackAgain<T>(again.held.bits[i]);
  }
  template <typename TW>
  __device__ Unpacked<T> Elements(const HeldColumns<TW, kVectors>& held, int i) const {
    Unpacked<T> wide;
    if constexpr (IsEarly<TW>()) {
      const Unpacked<TW> some = Unpack<TW>(held.bits[i]);
#pragma unroll
      for (int k = 0; k < kPer; ++k)
        wide.at[k] = held.columns.data ? some.at[k] + held.columns.offset : held.columns.absent;
    } else {
      const auto some = ReadColumns<kPer, W>(held.columns, int64_t{At(i)} * kPer);
#pragma unroll
      for (int k = 0; k < kPer; ++k) wide.at[k] = some.at[k];
    }
    return wide;
  }
  __device__ Flags<kPer> Elements(const HeldFlags<kVectors>& held, int i) const {
    return Flags<kPer>(held.bits[i]);
  }
  __device__ Flags<kPer> Elements(const BehindFlags& held, int i) const {
    return held.Of<kPer>(int64_t{At(i)} * kPer);
  }
  // What comes behind a reduction.
  __device__ Unpacked<T> Later(const HeldRow<T, kVectors>& held, int i) const {
    return Elements(Again(held), i);
  }
  template <typename Held>
  __device__ auto Later(const Held& held, int i) const {
    return Elements(held, i);
  }

  template <typename F, typename... Pieces>
  __device__ static W FoldPiece(W start, const F& f, const Pieces&... pieces) {
#pragma unroll
    for (int k = 0; k < kPer; ++k) start = f(start, pieces.at[k]...);
    return start;
  }
  template <typename F, typename... Pieces>
  __device__ static Unpacked<T> Apply(const F& f, const Pieces&... pieces) {
    Unpacked<T> result;
#pragma unroll
    for (int k = 0; k < kPer; ++k) result.at[k] = f(pieces.at[k]...);
    return result;
  }
  template <bool kAny>
  __device__ static void WritePieceAt(const RowsAt<kAny>& out, char* row, int64_t at,
                                      const Unpacked<T>& v) {
    if (out.template IsOf<T>()) {
      StoreAt(reinterpret_cast<T*>(row) + at, out.aligned, Pack<T>(v));
      return;
    }
#pragma unroll
    for (int k = 0; k < kPer; ++k) WriteFloating<W>(row, at + k, out.dtype(), v.at[k]);
  }

  int vectors_, mine_ = 0;
};

// ---- any row ----

// A row that is read each time: in pieces of 16 bytes, or by elements of any dtype.
template <bool kAny>
struct StreamedRow {
  const RowsAt<kAny>& rows;
};
template <typename T>
struct StreamedColumns {
  const ColumnsAt<T>& columns;
};

template <typename T, int kPiece>
class StreamRow : public RowTeam<Wide<T>> {
 public:
  using W = Wide<T>;
  static constexpr int kPer = kPiece;

  __device__ StreamRow(int lanes, Partials<W>& partials, int64_t D)
      : RowTeam<W>(lanes, partials), pieces_(D / kPer) {}
  __device__ void Take(int64_t row, int64_t rows) {
    RowTeam<W>::Take(row, rows);
    mine_ = this->inside_ ? pieces_ : 0;
  }
  __device__ void Keep(int64_t n) {
    if (this->inside_) mine_ = (n + kPer - 1) / kPer;
  }

  __device__ StreamedRow<true> Read(const RowsAt<true>& from) const { return {from}; }
  __device__ StreamedFlags Read(const FlagsAt& from) const { return {from}; }
  __device__ BehindFlags Behind(int64_t n) const { return {n}; }
  __device__ StreamedRow<true> Again(const StreamedRow<true>& row) const { return row; }
  template <typename TW>
  __device__ StreamedColumns<TW> Columns(const ColumnsAt<TW>& from) const {
    return {from};
  }

  // A thread that has many elements adds up sums of a few: float32 keeps its digits.
  template <typename F, typename... Held>
  __device__ W Sum(const F& f, const Held&... held) {
    constexpr int kFew = 64 / kPer;
    W sum = 0;
    for (int64_t at = this->lane(); at < mine_; at += int64_t{kFew} * this->lanes_) {
      W few = 0;
      const int64_t end =
          at + int64_t{kFew} * this->lanes_ < mine_ ? at + int64_t{kFew} * this->lanes_ : mine_;
#pragma unroll 4
      for (int64_t i = at; i < end; i += this->lanes_)
        few = FoldPiece(few, f, Elements(held, i)...);
      sum += few;
    }
    return this->Total(sum);
  }
  template <typename F, typename... Held>
  __device__ W Max(const F& f, const Held&... held) {
    return this->Greatest(Fold(
        static_cast<W>(-INFINITY), [&](W most, auto... v) { return fmax(most, f(v...)); },
        held...));
  }
  template <typename F, typename... Held>
  __device__ W Fold(W start, const F& f, const Held&... held) const {
#pragma unroll 4
    for (int64_t at = this->lane(); at < mine_; at += this->lanes_)
      start = FoldPiece(start, f, Elements(held, at)...);
    return start;
  }
  template <typename F, typename... Held>
  __device__ void Write(const RowsAt<true>& out, const F& f, const Held&... held) const {
    if (!this->inside_) return;
    char* row = out.At(this->index_);
#pragma unroll 2
    for (int64_t at = this->lane(); at < mine_; at += this->lanes_)
      WritePieceOf<T, kPer>(out, row, at * kPer, Apply(f, Elements(held, at)...));
  }
  __device__ void WriteRest(const RowsAt<true>& out) const {
    if (!this->inside_) return;
    char* row = out.At(this->index_);
    for (int64_t at = this->lane(); at < pieces_; at += this->lanes_) {
      if (at >= mine_) WritePieceOf<T, kPer>(out, row, at * kPer, Piece<W, kPer>{});
    }
  }
  // A group of any number of pieces: some lanes of a warp take one after the other.
  template <typename F, typename Join, typename Use, typename... Held>
  __device__ void EachGroup(int64_t group, const F& f, const Join& join, const Use& use,
                            const Held&... held) const {
    const int64_t pieces = group ? group / kPer : 1;
    int lanes = 1;
    while (lanes < pieces && lanes < 32 && lanes < this->lanes_) lanes *= 2;
    __syncwarp();  // what another lane has written may be read; a block has met before
    for (int64_t first = 0; first < pieces_; first += this->lanes_ / lanes * pieces) {
      const int64_t begin = first + this->lane() / lanes * pieces + this->lane() % lanes;
      const int64_t behind = begin - this->lane() % lanes + pieces,
                    end = behind < mine_ ? behind : mine_;
      W most = 0;
      for (int64_t at = begin; at < end && group; at += lanes)
        most = FoldPiece(most, f, Elements(held, at)...);
      most = this->JoinLanes(most, lanes, join);
      for (int64_t at = begin; at < end; at += lanes) use(at * kPer, most, Elements(held, at)...);
    }
  }
  // A thread reads again what it wrote itself.
  template <typename F, typename... Held>
  __device__ StreamedRow<true> WriteAndHold(const RowsAt<true>& out, const F& f,
                                            const Held&... held) const {
    Write(out, f, held...);
    return {out};
  }

 protected:
  __device__ Piece<W, kPer> Elements(const StreamedRow<true>& held, int64_t at) const {
    return ReadPieceOf<T, kPer>(held.rows, this->index_, at * kPer);
  }
  template <typename TW>
  __device__ Piece<W, kPer> Elements(const StreamedColumns<TW>& held, int64_t at) const {
    return ReadColumns<kPer, W>(held.columns, at * kPer);
  }
  __device__ Flags<kPer> Elements(const StreamedFlags& held, int64_t at) const {
    return Flags<kPer>(ReadFlags<kPer>(held.flags, held.flags.rows.At(this->index_), at * kPer));
  }
  __device__ Flags<kPer> Elements(const BehindFlags& held, int64_t at) const {
    return held.Of<kPer>(at * kPer);
  }
  template <typename F, typename... Pieces>
  __device__ static W FoldPiece(W start, const F& f, const Pieces&... pieces) {
#pragma unroll
    for (int k = 0; k < kPer; ++k) start = f(start, pieces.at[k]...);
    return start;
  }
  template <typename F, typename... Pieces>
  __device__ static Piece<W, kPer> Apply(const F& f, const Pieces&... pieces) {
    Piece<W, kPer> result;
#pragma unroll
    for (int k = 0; k < kPer; ++k) result.at[k] = f(pieces.at[k]...);
    return result;
  }

  int64_t pieces_, mine_ = 0;
};

// ---- launches ----

// Rows of up to 32 vectors, of up to 1,024 and longer ones. Threads of a block at most, and blocks
// that must fit on a multiprocessor, so that enough loads are on their way.
constexpr int kMaxHeld = 8 * 1024;
constexpr int VectorsOfThread(int64_t vectors) {
  return vectors <= 32 ? 1 : vectors <= 1024 ? 4 : 8;
}
constexpr int MaxThreads(int of_thread) {
  return of_thread == 1 ? 128 : of_thread == 4 ? 256 : 1024;
}
constexpr int MinBlocks(int of_thread) { return of_thread == 1 ? 8 : of_thread == 4 ? 4 : 1; }

template <typename Row, typename Op>
__device__ void WalkRows(const Op& op, int64_t rows, int64_t D, int lanes) {
  __shared__ Partials<typename Row::W> partials;
  Row row(lanes, partials, D);
  const int rows_of_block = blockDim.x / lanes;
  for (int64_t first = int64_t{blockIdx.x} * rows_of_block; first < rows;
       first += int64_t{gridDim.x} * rows_of_block) {
    row.Take(first + threadIdx.x / lanes, rows);
    op(row);
  }
}

template <typename T, int kVectors, typename Op>
__global__ void __launch_bounds__(MaxThreads(kVectors), MinBlocks(kVectors))
    RunInRegisters(const __grid_constant__ Op op, int64_t rows, int64_t D, int lanes) {
  WalkRows<RegisterRow<T, kVectors>>(op, rows, D, lanes);
}
template <typename T, typename Op>
__global__ void __launch_bounds__(MaxThreads(4), MinBlocks(4))
    RunInSlices(const __grid_constant__ Op op, int64_t rows, int64_t D) {
  WalkRows<RegisterRow<T, 4, true>>(op, rows, D, MaxThreads(4));
}
template <typename T, int kPiece, typename Op>
__global__ void __launch_bounds__(1024)
    RunInStreams(const __grid_constant__ Op op, int64_t rows, int64_t D, int lanes) {
  WalkRows<StreamRow<T, kPiece>>(op, rows, D, lanes);
}

// Threads of a row and of a block, for so many pieces of which a thread takes some.
struct RowThreads {
  int lanes, threads;
  RowThreads(int64_t pieces, int of_thread, int most) {
    const int64_t needed = CeilDiv(pieces, of_thread);
    lanes = 1;
    while (lanes < needed && lanes < 32) lanes *= 2;
    if (needed > 32) lanes = static_cast<int>(needed < most ? CeilDiv(needed, 32) * 32 : most);
    threads = lanes <= 32 ? 128 : lanes;
  }
  Launch LaunchFor(int64_t rows) const {
    const int64_t blocks = CeilDiv(rows, threads / lanes);
    return {dim3(static_cast<unsigned>(blocks < 0x7fffffff ? blocks : 0x7fffffff)), dim3(threads)};
  }
};

// kAny: one kernel for all, whose threads share rows as the plain ones do, for the same bits.
template <typename T, bool kAny, typename Op>
int32_t LaunchInRegisters(AnyopCall* call, RowShape shape, const Op& op) {
  const int64_t vectors = shape.D / kPerVector<T>;
  const int of_thread = VectorsOfThread(vectors);
  const RowThreads threads(vectors, of_thread, 1024);
  const Launch launch = threads.LaunchFor(shape.rows);
  if (kAny || of_thread == 8)
    return launch.Run(call, RunInRegisters<T, 8, Op>, op, shape.rows, shape.D, threads.lanes);
  if constexpr (!kAny) {
    if (of_thread == 1)
      return launch.Run(call, RunInRegisters<T, 1, Op>, op, shape.rows, shape.D, threads.lanes);
    return launch.Run(call, RunInRegisters<T, 4, Op>, op, shape.rows, shape.D, threads.lanes);
  }
  return kAnyopInternalError;
}

// kPlain: what is written does, whatever `fit` says.
template <typename T, bool kPlain = false, typename Make>
int32_t RunFitted(AnyopCall* call, RowShape shape, RowsFit fit, const Make& make) {
  if (shape.rows == 0 || shape.D == 0) return kAnyopOk;
  if constexpr (sizeof(T) < 8) {  // float64, which GPUs are slow at, is not worth their size
    if (fit.vectors && fit.one_stride && shape.D <= int64_t{kMaxHeld} * kPerVector<T>) {
      if (kPlain || fit.plain)
        return LaunchInRegisters<T, false>(call, shape, make(std::false_type()));
      if constexpr (!kPlain) return LaunchInRegisters<T, true>(call, shape, make(std::true_type()));
    }
  }
  const auto op = make(std::true_type());
  using Op = std::remove_const_t<decltype(op)>;
  const int64_t pieces = fit.columns ? 1 : fit.vectors ? shape.D / kPerVector<T> : shape.D;
  const RowThreads threads(pieces, 4, 1024);  // side by side: a thread for each
  const Launch launch = threads.LaunchFor(shape.rows);
  if constexpr (sizeof(T) < 8) {
    if (fit.vectors)
      return launch.Run(call, RunInStreams<T, kPerVector<T>, Op>, op, shape.rows, shape.D,
                        threads.lanes);
  }
  return launch.Run(call, RunInStreams<T, 1, Op>, op, shape.rows, shape.D, threads.lanes);
}

// Runs make(kAny), an operator, over rows of D elements of T. NULL tensors are left out.
template <typename T, typename Make, size_t kRead, size_t kWritten>
int32_t RunRows(AnyopCall* call, RowShape shape, const AnyopTensor* const (&read)[kRead],
                const AnyopTensor* const (&written)[kWritten], const Make& make) {
  return RunFitted<T>(call, shape, FitRows<T>(shape, read, written), make);
}

}  // namespace anyop::cuda

#endif  // ANYOP_CUDA_ROW_H_
