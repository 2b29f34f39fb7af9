// SPDX-License-Identifier: Apache-2.0
// add on CUDA: floats in float32 (float64), integers modulo 2^n.
//
// Who does what: a thread takes an item, 16 bytes of each operand, where the innermost dimensions
// lie side by side and aligned (or an input is repeated along it). All else, also operands of
// different dtypes, is walked element by element through a switch on the dtypes. 3 s bytes are
// moved an element of size s. Many small blocks: more items a thread, or wider blocks, reach less
// of the memory's rate.
#include "anyop/cuda_walk.h"
#include "anyop/ops/add.h"

namespace anyop::cuda {
namespace {

constexpr int kThreads = 128;

struct Alpha {
  double real;
  uint64_t integer;
};

__device__ inline float Sum(float x, float y, const Alpha& a) {
  return MulAdd(static_cast<float>(a.real), y, x);
}
__device__ inline double Sum(double x, double y, const Alpha& a) { return MulAdd(a.real, y, x); }
__device__ inline __half Sum(__half x, __half y, const Alpha& a) {
  return Narrow<__half>(Sum(Widen(x), Widen(y), a));
}
__device__ inline __nv_bfloat16 Sum(__nv_bfloat16 x, __nv_bfloat16 y, const Alpha& a) {
  return Narrow<__nv_bfloat16>(Sum(Widen(x), Widen(y), a));
}
// Integers wrap around, so signed ones are added as unsigned ones.
template <typename Unsigned>
__device__ Unsigned Sum(Unsigned x, Unsigned y, const Alpha& a) {
  return static_cast<Unsigned>(uint64_t{x} + a.integer * y);
}
struct Truth {
  uint8_t byte;
};
__device__ inline Truth Sum(Truth x, Truth y, const Alpha& a) {
  return {static_cast<uint8_t>(x.byte != 0 || (a.integer != 0 && y.byte != 0))};
}

template <typename T>
struct Operands {
  Walk walk;
  const T* x;
  const T* y;
  T* out;
  Alpha alpha;
  bool repeats[2];  // x, y: one element for the whole item
};

template <typename T>
using Item = Vector<T, kPerVector<T>>;

template <typename T>
__device__ Item<T> Read(const T* from, bool repeats) {
  if (!repeats) return *reinterpret_cast<const Item<T>*>(from);
  Item<T> all;
#pragma unroll
  for (int k = 0; k < kPerVector<T>; ++k) all.at[k] = *from;
  return all;
}

template <typename T>
__device__ Item<T> SumOf(Item<T> x, const Item<T>& y, const Alpha& alpha) {
#pragma unroll
  for (int k = 0; k < kPerVector<T>; ++k) x.at[k] = Sum(x.at[k], y.at[k], alpha);
  return x;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) AddItems(const __grid_constant__ Operands<T> p) {
  for (int64_t item = int64_t{blockIdx.x} * kThreads + threadIdx.x; item < p.walk.items;
       item += int64_t{gridDim.x} * kThreads) {
    const Places at = PlacesOf(p.walk, item);
    const Item<T> x = Read(p.x + at.x, p.repeats[0]), y = Read(p.y + at.y, p.repeats[1]);
    *reinterpret_cast<Item<T>*>(p.out + at.out) = SumOf<T>(x, y, p.alpha);
  }
}

// All three operands side by side from end to end.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    AddRun(const Item<T>* x, const Item<T>* y, Item<T>* out, int64_t items, Alpha alpha) {
  for (int64_t item = int64_t{blockIdx.x} * kThreads + threadIdx.x; item < items;
       item += int64_t{gridDim.x} * kThreads)
    out[item] = SumOf<T>(x[item], y[item], alpha);
}

struct AnyOperands {
  Walk walk;
  const char* x;
  const char* y;
  char* out;
  Alpha alpha;
  AnyopDtype x_dtype, y_dtype, out_dtype;
};

// One element as a float, a double, or (integers, sign-extended) a uint64_t.
template <typename Wide>
__device__ Wide ReadAs(const char* data, int64_t at, AnyopDtype dtype) {
  switch (dtype) {
    case kAnyopFloat32:
      return static_cast<Wide>(reinterpret_cast<const float*>(data)[at]);
    case kAnyopFloat16:
      return static_cast<Wide>(Widen(reinterpret_cast<const __half*>(data)[at]));
    case kAnyopBFloat16:
      return static_cast<Wide>(Widen(reinterpret_cast<const __nv_bfloat16*>(data)[at]));
    case kAnyopFloat64:
      return static_cast<Wide>(reinterpret_cast<const double*>(data)[at]);
    case kAnyopInt64:
      return static_cast<Wide>(reinterpret_cast<const int64_t*>(data)[at]);
    case kAnyopInt32:
      return static_cast<Wide>(reinterpret_cast<const int32_t*>(data)[at]);
    case kAnyopInt16:
      return static_cast<Wide>(reinterpret_cast<const int16_t*>(data)[at]);
    case kAnyopInt8:
      return static_cast<Wide>(reinterpret_cast<const int8_t*>(data)[at]);
    case kAnyopUInt8:
      return static_cast<Wide>(reinterpret_cast<const uint8_t*>(data)[at]);
    default:  // bool
      return static_cast<Wide>(data[at] != 0);
  }
}
__device__ inline void WriteAs(char* data, int64_t at, AnyopDtype dtype, float v) {
  if (dtype == kAnyopFloat32) reinterpret_cast<float*>(data)[at] = v;
  if (dtype == kAnyopFloat16) reinterpret_cast<__half*>(data)[at] = Narrow<__half>(v);
  if (dtype == kAnyopBFloat16)
    reinterpret_cast<__nv_bfloat16*>(data)[at] = Narrow<__nv_bfloat16>(v);
}
__device__ inline void WriteAs(char* data, int64_t at, AnyopDtype, double v) {
  reinterpret_cast<double*>(data)[at] = v;
}
// v of bool: at most 2, for alpha is 0 or 1.
__device__ inline void WriteAs(char* data, int64_t at, AnyopDtype dtype, uint64_t v) {
  if (dtype == kAnyopBool) data[at] = v != 0;
  if (dtype == kAnyopInt64) reinterpret_cast<uint64_t*>(data)[at] = v;
  if (dtype == kAnyopInt32) reinterpret_cast<uint32_t*>(data)[at] = static_cast<uint32_t>(v);
  if (dtype == kAnyopInt16) reinterpret_cast<uint16_t*>(data)[at] = static_cast<uint16_t>(v);
  if (dtype == kAnyopInt8 || dtype == kAnyopUInt8)
    reinterpret_cast<uint8_t*>(data)[at] = static_cast<uint8_t>(v);
}

template <typename Wide>
__global__ void __launch_bounds__(kThreads) AddElements(const __grid_constant__ AnyOperands p) {
  for (int64_t item = int64_t{blockIdx.x} * kThreads + threadIdx.x; item < p.walk.items;
       item += int64_t{gridDim.x} * kThreads) {
    const Places at = PlacesOf(p.walk, item);
    const Wide x = ReadAs<Wide>(p.x, at.x, p.x_dtype), y = ReadAs<Wide>(p.y, at.y, p.y_dtype);
    WriteAs(p.out, at.out, p.out_dtype, Sum(x, y, p.alpha));
  }
}

Launch GridFor(int64_t items) {
  const int64_t blocks = CeilDiv(items, kThreads);
  return {dim3(static_cast<unsigned>(blocks < 0x7fffffff ? blocks : 0x7fffffff)), dim3(kThreads)};
}

AnyOperands OperandsOf(const AddArgs* args, const Walk& walk, Alpha alpha) {
  return {walk,
          static_cast<const char*>(args->x->data),
          static_cast<const char*>(args->y->data),
          static_cast<char*>(args->out->data),
          alpha,
          AnyopDtypeOf(args->x),
          AnyopDtypeOf(args->y),
          AnyopDtypeOf(args->out)};
}

int32_t RunElements(AnyopCall* call, const AnyOperands& p) {
  const Launch launch = GridFor(p.walk.items);
  switch (p.out_dtype) {
    case kAnyopFloat64:
      return launch.Run(call, AddElements<double>, p);
    case kAnyopFloat32:
    case kAnyopFloat16:
    case kAnyopBFloat16:
      return launch.Run(call, AddElements<float>, p);
    default:
      return launch.Run(call, AddElements<uint64_t>, p);
  }
}

// One dimension that no whole number of items fills: its last elements, then walk without them.
int32_t RunTail(AnyopCall* call, AnyOperands p, Walk* walk, int64_t item_bytes, int64_t per_item) {
  const int64_t tail = walk->ndim == 1 ? walk->size[0] % per_item : 0;
  if (tail == 0 || tail == walk->size[0]) return kAnyopOk;
  const int64_t body = walk->size[0] - tail;
  const int64_t bytes = item_bytes / per_item;
  p.x += body * walk->step[0][0] * bytes;
  p.y += body * walk->step[1][0] * bytes;
  p.out += body * walk->step[2][0] * bytes;
  p.walk.items = p.walk.size[0] = tail;
  walk->items = walk->size[0] = body;
  return RunElements(call, p);
}

template <typename T>
int32_t RunItems(AnyopCall* call, const AnyOperands& all) {
  Operands<T> p{all.walk,
                reinterpret_cast<const T*>(all.x),
                reinterpret_cast<const T*>(all.y),
                reinterpret_cast<T*>(all.out),
                all.alpha,
                {}};
  const void* const data[] = {all.x, all.y, all.out};
  if (int32_t status = RunTail(call, all, &p.walk, 16, kPerVector<T>)) return status;
  const Walk body = p.walk;
  if (p.walk.Divide(kPerVector<T>, data, p.repeats)) {
    const Launch launch = GridFor(p.walk.items);
    if (p.walk.ndim > 1 || p.repeats[0] || p.repeats[1]) return launch.Run(call, AddItems<T>, p);
    return launch.Run(call, AddRun<T>, reinterpret_cast<const Item<T>*>(p.x),
                      reinterpret_cast<const Item<T>*>(p.y), reinterpret_cast<Item<T>*>(p.out),
                      p.walk.items, p.alpha);
  }
  AnyOperands rest = all;
  rest.walk = body;
  return RunElements(call, rest);
}

int32_t Run(const AddArgs* args, AnyopCall* call, Alpha alpha) {
  const AnyOperands p = OperandsOf(args, Walk(args->x, args->y, args->out), alpha);
  if (p.walk.items == 0) return kAnyopOk;
  if (p.x_dtype != p.out_dtype || p.y_dtype != p.out_dtype) return RunElements(call, p);
  switch (p.out_dtype) {
    case kAnyopInt64:
      return RunItems<uint64_t>(call, p);
    case kAnyopInt32:
      return RunItems<uint32_t>(call, p);
    case kAnyopInt16:
      return RunItems<uint16_t>(call, p);
    case kAnyopInt8:
    case kAnyopUInt8:
      return RunItems<uint8_t>(call, p);
    case kAnyopBool:
      return RunItems<Truth>(call, p);
    default:
      return WithFloating(p.out_dtype,
                          [&](auto zero) { return RunItems<decltype(zero)>(call, p); });
  }
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_add_cuda(const AddArgs* args, AnyopCall* call) {
  const double alpha = args->alpha;
  const AnyopDtype dtype = AnyopDtypeOf(args->out);
  if (dtype == kAnyopFloat32 || dtype == kAnyopFloat16 || dtype == kAnyopBFloat16 ||
      dtype == kAnyopFloat64)
    return anyop::cuda::Run(args, call, {alpha, 0});
  const bool in_range = alpha >= -0x1p63 && alpha < 0x1p63;
  if (!in_range || alpha != static_cast<double>(static_cast<int64_t>(alpha))) {
    return call->fail(call, kAnyopValueError,
                      "alpha has a fraction or is too large, expected an integer for integers");
  }
  const auto integer = static_cast<uint64_t>(static_cast<int64_t>(alpha));
  return anyop::cuda::Run(args, call, {alpha, dtype == kAnyopBool ? integer != 0 : integer});
}
