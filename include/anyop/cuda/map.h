/* SPDX-License-Identifier: Apache-2.0 */
/* The element-wise scheme of CUDA kernels: an operator says what happens to one element. */
#ifndef ANYOP_CUDA_MAP_H_
#define ANYOP_CUDA_MAP_H_

#include "anyop/cuda/walk.h"

// An operator is a function of elements, with any attributes it has:
//
//   struct Silu {
//     template <typename W>
//     __device__ W operator()(W x) const { return x / (1 + exp(-x)); }
//   };
//   return RunFloatMap(call, Silu(), {args->x}, args->out);
//
// W is float, or double for float64. With several results it writes them: RunFloatMaps, and
// void operator()(const W (&in)[kIn], W (&out)[kOut]).
//
// Who does what: a thread takes an item, 16 bytes of each operand, where the innermost dimensions
// lie side by side and aligned (or an input is repeated along it): MapRun where that is all there
// is, MapPlane for rows, MapItems for more dimensions. All else, also operands of different dtypes,
// is walked element by element through a switch on the dtypes. Many small blocks: more items a
// thread, or wider blocks, reach less of the memory's rate.
namespace anyop::cuda {

constexpr int kMapThreads = 128;

inline Launch MapLaunch(int64_t items) {
  const int64_t blocks = CeilDiv(items, kMapThreads);
  return {dim3(static_cast<unsigned>(blocks < 0x7fffffff ? blocks : 0x7fffffff)),
          dim3(kMapThreads)};
}

// ---- elements of any dtype ----

struct Truth {  // bool: any byte but 0
  uint8_t byte;
};
__device__ inline bool IsTrue(Truth v) { return v.byte != 0; }

// One element as a float, a double, or (integers, sign-extended) a uint64_t.
template <typename W>
__device__ W ReadAs(const char* data, int64_t at, AnyopDtype dtype) {
  switch (dtype) {
    case kAnyopFloat32:
      return static_cast<W>(reinterpret_cast<const float*>(data)[at]);
    case kAnyopFloat16:
      return static_cast<W>(Widen(reinterpret_cast<const __half*>(data)[at]));
    case kAnyopBFloat16:
      return static_cast<W>(Widen(reinterpret_cast<const __nv_bfloat16*>(data)[at]));
    case kAnyopFloat64:
      return static_cast<W>(reinterpret_cast<const double*>(data)[at]);
    case kAnyopInt64:
      return static_cast<W>(reinterpret_cast<const int64_t*>(data)[at]);
    case kAnyopInt32:
      return static_cast<W>(reinterpret_cast<const int32_t*>(data)[at]);
    case kAnyopInt16:
      return static_cast<W>(reinterpret_cast<const int16_t*>(data)[at]);
    case kAnyopInt8:
      return static_cast<W>(reinterpret_cast<const int8_t*>(data)[at]);
    case kAnyopUInt8:
      return static_cast<W>(reinterpret_cast<const uint8_t*>(data)[at]);
    default:  // bool
      return static_cast<W>(data[at] != 0);
  }
}
template <typename W>
__device__ void WriteFloatAs(char* data, int64_t at, AnyopDtype dtype, W v) {
  if (dtype == kAnyopFloat64) reinterpret_cast<double*>(data)[at] = static_cast<double>(v);
  if (dtype == kAnyopFloat32) reinterpret_cast<float*>(data)[at] = static_cast<float>(v);
  if (dtype == kAnyopFloat16)
    reinterpret_cast<__half*>(data)[at] = Narrow<__half>(static_cast<float>(v));
  if (dtype == kAnyopBFloat16)
    reinterpret_cast<__nv_bfloat16*>(data)[at] = Narrow<__nv_bfloat16>(static_cast<float>(v));
}
__device__ inline void WriteAs(char* data, int64_t at, AnyopDtype dtype, float v) {
  WriteFloatAs(data, at, dtype, v);
}
__device__ inline void WriteAs(char* data, int64_t at, AnyopDtype dtype, double v) {
  WriteFloatAs(data, at, dtype, v);
}
__device__ inline void WriteAs(char* data, int64_t at, AnyopDtype dtype, uint64_t v) {
  if (dtype == kAnyopBool) data[at] = v != 0;
  if (dtype == kAnyopInt64) reinterpret_cast<uint64_t*>(data)[at] = v;
  if (dtype == kAnyopInt32) reinterpret_cast<uint32_t*>(data)[at] = static_cast<uint32_t>(v);
  if (dtype == kAnyopInt16) reinterpret_cast<uint16_t*>(data)[at] = static_cast<uint16_t>(v);
  if (dtype == kAnyopInt8 || dtype == kAnyopUInt8)
    reinterpret_cast<uint8_t*>(data)[at] = static_cast<uint8_t>(v);
}

// ---- what a kernel gets ----

template <int kIn, int kOut>
struct MapOperands {
  Walk<kIn + kOut> walk;
  char* data[kIn + kOut];  // inputs, results
  AnyopDtype dtype[kIn + kOut];
  bool repeats[kIn + kOut] = {};  // an input: one element for the whole item

  explicit MapOperands(const AnyopTensor* const (&operands)[kIn + kOut]) : walk(operands, kIn) {
    for (int o = 0; o < kIn + kOut; ++o) {
      data[o] = static_cast<char*>(operands[o]->data);
      dtype[o] = AnyopDtypeOf(operands[o]);
    }
  }
};

// Of a floating type the function sees Wide<T>, of another one T.
template <typename T>
struct Computed {
  static constexpr bool kFloats = std::is_floating_point<T>::value ||
                                  std::is_same<T, __half>::value ||
                                  std::is_same<T, __nv_bfloat16>::value;
  using Type = typename std::conditional<kFloats, Wide<T>, T>::type;
};

template <typename T>
using Item = Vector<T, kPerVector<T>>;

// 16 bytes, or the one element that is repeated; Repeated makes 16 bytes of it once all loads are
// on their way.
template <typename T>
__device__ uint4 LoadItem(const char* from, bool repeats) {
  if (!repeats) return *reinterpret_cast<const uint4*>(from);
  if constexpr (sizeof(T) == 8) {
    const uint2 one = *reinterpret_cast<const uint2*>(from);
    return make_uint4(one.x, one.y, 0, 0);
  }
  return make_uint4(sizeof(T) == 4   ? *reinterpret_cast<const uint32_t*>(from)
                    : sizeof(T) == 2 ? *reinterpret_cast<const uint16_t*>(from)
                                     : *reinterpret_cast<const uint8_t*>(from),
                    0, 0, 0);
}
template <typename T>
__device__ Item<T> Repeated(uint4 bits, bool repeats) {
  if (repeats) {
    bits.x *= sizeof(T) == 1 ? 0x01010101u : sizeof(T) == 2 ? 0x10001u : 1;
    bits = sizeof(T) == 8 ? make_uint4(bits.x, bits.y, bits.x, bits.y)
                          : make_uint4(bits.x, bits.x, bits.x, bits.x);
  }
  return reinterpret_cast<const Item<T>&>(bits);
}
template <typename T>
__device__ Item<T> ReadItem(const char* data, int64_t at, bool repeats) {
  const char* from = data + at * int64_t{sizeof(T)};
  return Repeated<T>(LoadItem<T>(from, repeats), repeats);
}

// What the function sees of an item, and back.
template <typename T>
struct Elements {
  typename Computed<T>::Type at[kPerVector<T>];
};
template <typename T>
__device__ Elements<T> Compute(const Item<T>& item) {
  if constexpr (Computed<T>::kFloats) {
    const Unpacked<T> wide = Unpack<T>(reinterpret_cast<const uint4&>(item));
    return reinterpret_cast<const Elements<T>&>(wide);
  } else {
    return reinterpret_cast<const Elements<T>&>(item);
  }
}
template <typename T>
__device__ uint4 Rounded(const Elements<T>& v) {
  if constexpr (Computed<T>::kFloats) {
    return Pack<T>(reinterpret_cast<const Unpacked<T>&>(v));
  } else {
    return reinterpret_cast<const uint4&>(v);
  }
}

// Calls the function: one result is returned, several are written.
template <typename F, typename V, int kIn, int kOut>
__device__ void CallMap(const F& f, const V (&in)[kIn], V (&out)[kOut]) {
  if constexpr (kOut > 1) {
    f(in, out);
  } else if constexpr (kIn == 1) {
    out[0] = f(in[0]);
  } else if constexpr (kIn == 2) {
    out[0] = f(in[0], in[1]);
  } else {
    out[0] = f(in[0], in[1], in[2]);
  }
}

template <typename T, typename F, int kIn, int kOut>
__device__ void MapItem(const F& f, const Item<T> (&in)[kIn], uint4 (&out)[kOut]) {
  using V = typename Computed<T>::Type;
  Elements<T> read[kIn], made[kOut];
#pragma unroll
  for (int o = 0; o < kIn; ++o) read[o] = Compute(in[o]);
#pragma unroll
  for (int k = 0; k < kPerVector<T>; ++k) {
    V from[kIn], to[kOut];
#pragma unroll
    for (int o = 0; o < kIn; ++o) from[o] = read[o].at[k];
    CallMap(f, from, to);
#pragma unroll
    for (int o = 0; o < kOut; ++o) made[o].at[k] = to[o];
  }
#pragma unroll
  for (int o = 0; o < kOut; ++o) out[o] = Rounded<T>(made[o]);
}

// ---- kernels ----

// All operands side by side from end to end; where: in items.
template <typename T, int kIn, int kOut>
struct RunOperands {
  const uint4* in[kIn];
  uint4* out[kOut];
  int64_t items;
};
template <typename T, int kIn, int kOut, typename F>
__global__ void __launch_bounds__(kMapThreads)
    MapRun(const __grid_constant__ RunOperands<T, kIn, kOut> p, const F f) {
  const int64_t item = int64_t{blockIdx.x} * kMapThreads + threadIdx.x;
  if (item >= p.items) return;
  Item<T> in[kIn];
  uint4 out[kOut];
#pragma unroll
  for (int o = 0; o < kIn; ++o) reinterpret_cast<uint4&>(in[o]) = p.in[o][item];
  MapItem<T>(f, in, out);
#pragma unroll
  for (int o = 0; o < kOut; ++o) p.out[o][item] = out[o];
}

// Rows of items, whose places one division gives.
template <int kIn, int kOut>
struct PlaneOperands {
  char* data[kIn + kOut];
  int32_t of_row[kIn + kOut], of_item[kIn + kOut];  // steps, in bytes
  bool repeats[kIn], some_repeats = false, fits;
  uint32_t items;
  Divisor row;

  PlaneOperands(const MapOperands<kIn, kOut>& p, int item_bytes)
      : fits(p.walk.small && p.walk.ndim <= 2), items(static_cast<uint32_t>(p.walk.items)) {
    const int last = fits ? p.walk.ndim - 1 : 0;
    row = p.walk.divisor[last];
    for (int o = 0; o < kIn + kOut; ++o) {
      data[o] = p.data[o];
      const int64_t bytes = last ? p.walk.step[o][0] * item_bytes : 0;
      fits = fits && bytes == static_cast<int32_t>(bytes);
      of_row[o] = static_cast<int32_t>(bytes);
      of_item[o] = p.repeats[o] ? 0 : 16;
      if (o < kIn) repeats[o] = p.repeats[o];
      some_repeats = some_repeats || p.repeats[o];
    }
  }
  __device__ char* At(int o, uint32_t row_at, uint32_t at) const {
    return data[o] + int64_t{of_row[o]} * static_cast<int32_t>(row_at) +
           int64_t{of_item[o]} * static_cast<int32_t>(at);
  }
};
template <typename T, int kIn, int kOut, typename F>
__global__ void __launch_bounds__(kMapThreads)
    MapPlane(const __grid_constant__ PlaneOperands<kIn, kOut> p, const F f) {
  const uint32_t item = blockIdx.x * kMapThreads + threadIdx.x;
  if (item >= p.items) return;
  const uint32_t row = p.row.Divide(item), at = item - row * p.row.value;
  uint4 bits[kIn], out[kOut];
  Item<T> in[kIn];
  if (p.some_repeats) {
#pragma unroll
    for (int o = 0; o < kIn; ++o) bits[o] = LoadItem<T>(p.At(o, row, at), p.repeats[o]);
#pragma unroll
    for (int o = 0; o < kIn; ++o) in[o] = Repeated<T>(bits[o], p.repeats[o]);
  } else {
#pragma unroll
    for (int o = 0; o < kIn; ++o) in[o] = *reinterpret_cast<const Item<T>*>(p.At(o, row, at));
  }
  MapItem<T>(f, in, out);
#pragma unroll
  for (int o = 0; o < kOut; ++o) *reinterpret_cast<uint4*>(p.At(kIn + o, row, at)) = out[o];
}

template <typename T, int kIn, int kOut, typename F>
__global__ void __launch_bounds__(kMapThreads)
    MapItems(const __grid_constant__ MapOperands<kIn, kOut> p, const F f) {
  for (int64_t item = int64_t{blockIdx.x} * kMapThreads + threadIdx.x; item < p.walk.items;
       item += int64_t{gridDim.x} * kMapThreads) {
    const Places<kIn + kOut> at = PlacesOf(p.walk, item);
    Item<T> in[kIn];
    uint4 out[kOut];
#pragma unroll
    for (int o = 0; o < kIn; ++o) in[o] = ReadItem<T>(p.data[o], at.at[o], p.repeats[o]);
    MapItem<T>(f, in, out);
#pragma unroll
    for (int o = 0; o < kOut; ++o) {
      T* to = reinterpret_cast<T*>(p.data[kIn + o]) + at.at[kIn + o];
      *reinterpret_cast<uint4*>(to) = out[o];
    }
  }
}

template <typename V, int kIn, int kOut, typename F>
__global__ void __launch_bounds__(kMapThreads)
    MapElements(const __grid_constant__ MapOperands<kIn, kOut> p, const F f) {
  for (int64_t item = int64_t{blockIdx.x} * kMapThreads + threadIdx.x; item < p.walk.items;
       item += int64_t{gridDim.x} * kMapThreads) {
    const Places<kIn + kOut> at = PlacesOf(p.walk, item);
    V in[kIn], out[kOut];
#pragma unroll
    for (int o = 0; o < kIn; ++o) in[o] = ReadAs<V>(p.data[o], at.at[o], p.dtype[o]);
    CallMap(f, in, out);
#pragma unroll
    for (int o = 0; o < kOut; ++o)
      WriteAs(p.data[kIn + o], at.at[kIn + o], p.dtype[kIn + o], out[o]);
  }
}

// ---- launches ----

// V: float, double or uint64_t, by the first result's dtype.
template <typename V, int kIn, int kOut, typename F>
int32_t RunElements(AnyopCall* call, const F& f, const MapOperands<kIn, kOut>& p) {
  return MapLaunch(p.walk.items).Run(call, MapElements<V, kIn, kOut, F>, p, f);
}

// All operands are of type T; V is the type for elements that lie alone.
template <typename T, typename V, int kIn, int kOut, typename F>
int32_t RunItems(AnyopCall* call, const F& f, MapOperands<kIn, kOut> p) {
  constexpr int kCount = kPerVector<T>;
  // One dimension that no whole number of items fills: its last elements, then the others.
  const int64_t tail = p.walk.ndim == 1 ? p.walk.size[0] % kCount : 0;
  if (tail && tail < p.walk.size[0]) {
    MapOperands<kIn, kOut> rest = p;
    const int64_t body = p.walk.size[0] - tail;
    for (int o = 0; o < kIn + kOut; ++o)
      rest.data[o] += body * p.walk.step[o][0] * int64_t{sizeof(T)};
    rest.walk.Cut(tail);
    if (int32_t status = RunElements<V>(call, f, rest)) return status;
    p.walk.Cut(body);
  }
  if (!p.walk.Divide(kCount, kIn, p.data, p.repeats)) return RunElements<V>(call, f, p);
  bool run = p.walk.ndim == 1;
  for (const bool repeats : p.repeats) run = run && !repeats;
  if (!run) {
    const PlaneOperands<kIn, kOut> plane(p, sizeof(T));
    return plane.fits ? MapLaunch(plane.items).Run(call, MapPlane<T, kIn, kOut, F>, plane, f)
                      : MapLaunch(p.walk.items).Run(call, MapItems<T, kIn, kOut, F>, p, f);
  }
  RunOperands<T, kIn, kOut> all;
  for (int o = 0; o < kIn; ++o) all.in[o] = reinterpret_cast<const uint4*>(p.data[o]);
  for (int o = 0; o < kOut; ++o) all.out[o] = reinterpret_cast<uint4*>(p.data[kIn + o]);
  all.items = p.walk.items;
  return MapLaunch(all.items).Run(call, MapRun<T, kIn, kOut, F>, all, f);
}

template <int kIn, int kOut, typename F>
int32_t RunFloatOperands(AnyopCall* call, const F& f, const MapOperands<kIn, kOut>& p) {
  if (p.walk.items == 0) return kAnyopOk;
  const AnyopDtype dtype = p.dtype[kIn];
  bool uniform = true;
  for (const AnyopDtype other : p.dtype) uniform = uniform && other == dtype;
  return WithFloating(dtype, [&](auto zero) {
    using T = decltype(zero);
    return uniform ? RunItems<T, Wide<T>>(call, f, p) : RunElements<Wide<T>>(call, f, p);
  });
}

// out = f(in...), of floating results; inputs may be of any dtype.
template <size_t kIn, typename F>
int32_t RunFloatMap(AnyopCall* call, const F& f, const AnyopTensor* const (&in)[kIn],
                    const AnyopTensor* out) {
  const AnyopTensor* operands[kIn + 1];
  for (size_t o = 0; o < kIn; ++o) operands[o] = in[o];
  operands[kIn] = out;
  return RunFloatOperands(call, f, MapOperands<static_cast<int>(kIn), 1>(operands));
}
template <size_t kIn, size_t kOut, typename F>
int32_t RunFloatMaps(AnyopCall* call, const F& f, const AnyopTensor* const (&in)[kIn],
                     const AnyopTensor* const (&out)[kOut]) {
  const AnyopTensor* operands[kIn + kOut];
  for (size_t o = 0; o < kIn; ++o) operands[o] = in[o];
  for (size_t o = 0; o < kOut; ++o) operands[kIn + o] = out[o];
  return RunFloatOperands(call, f,
                          MapOperands<static_cast<int>(kIn), static_cast<int>(kOut)>(operands));
}

// out = f(in...) of any dtype: integers wrap around, so signed ones are seen as unsigned ones; bool
// as Truth where all are bool, else as 0 and 1 of a uint64_t.
template <size_t kIn, typename F>
int32_t RunMap(AnyopCall* call, const F& f, const AnyopTensor* const (&in)[kIn],
               const AnyopTensor* out) {
  const AnyopTensor* operands[kIn + 1];
  for (size_t o = 0; o < kIn; ++o) operands[o] = in[o];
  operands[kIn] = out;
  constexpr int kInputs = static_cast<int>(kIn);
  const MapOperands<kInputs, 1> p(operands);
  if (p.walk.items == 0) return kAnyopOk;
  const AnyopDtype dtype = p.dtype[kIn];
  bool uniform = true;
  for (const AnyopDtype other : p.dtype) uniform = uniform && other == dtype;
  switch (dtype) {
    case kAnyopFloat32:
    case kAnyopFloat16:
    case kAnyopBFloat16:
    case kAnyopFloat64:
      return RunFloatOperands(call, f, p);
    case kAnyopInt64:
      return uniform ? RunItems<uint64_t, uint64_t>(call, f, p) : RunElements<uint64_t>(call, f, p);
    case kAnyopInt32:
      return uniform ? RunItems<uint32_t, uint64_t>(call, f, p) : RunElements<uint64_t>(call, f, p);
    case kAnyopInt16:
      return uniform ? RunItems<uint16_t, uint64_t>(call, f, p) : RunElements<uint64_t>(call, f, p);
    case kAnyopBool:
      return uniform ? RunItems<Truth, uint64_t>(call, f, p) : RunElements<uint64_t>(call, f, p);
    default:
      return uniform ? RunItems<uint8_t, uint64_t>(call, f, p) : RunElements<uint64_t>(call, f, p);
  }
}

// A view of half the last dimension of x (* 2*D): the first or the second.
struct HalfOf {
  AnyopTensor tensor;
  int64_t shape[64] = {};

  HalfOf(const AnyopTensor* x, int which) : tensor(*x) {
    for (int d = 0; d < x->ndim; ++d) shape[d] = x->shape[d];
    const int last = x->ndim - 1;
    shape[last] /= 2;
    tensor.shape = shape;
    tensor.data =
        static_cast<char*>(x->data) + which * shape[last] * x->strides[last] * (x->dtype_bits / 8);
  }
  HalfOf(const HalfOf&) = delete;
};

// A row (D) as if it were repeated in every row of x (* D).
struct RepeatedRow {
  AnyopTensor tensor;
  int64_t strides[64] = {};

  RepeatedRow(const AnyopTensor* row, const AnyopTensor* x) : tensor(*row) {
    strides[x->ndim - 1] = row->strides[0];
    tensor.ndim = x->ndim;
    tensor.shape = x->shape;
    tensor.strides = strides;
  }
  RepeatedRow(const RepeatedRow&) = delete;
};

}  // namespace anyop::cuda

#endif  // ANYOP_CUDA_MAP_H_
