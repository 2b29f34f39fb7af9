// SPDX-License-Identifier: Apache-2.0
// Conversions between dtypes on CUDA: one read and one write an element.
#pragma once

#include "anyop/cuda/map.h"

// Who does what: anyop/cuda/map.h; between floats of up to 32 bits that lie side by side a thread
// takes items of 16 bytes of the wider type. Values go by way of float, double or int64_t, as the
// input is.

namespace anyop::cuda {
namespace {

struct Same {
  template <typename V>
  __device__ V operator()(V v) const {
    return v;
  }
};

template <typename V>
__device__ void ConvertTo(char* data, int64_t at, AnyopDtype dtype, V v) {
  if (dtype == kAnyopFloat64) {
    reinterpret_cast<double*>(data)[at] = static_cast<double>(v);
  } else if (dtype == kAnyopBool) {
    data[at] = v != 0;
  } else if (dtype == kAnyopFloat32 || dtype == kAnyopFloat16 || dtype == kAnyopBFloat16) {
    WriteAs(data, at, dtype, static_cast<float>(v));
  } else {
    WriteAs(data, at, dtype, static_cast<uint64_t>(static_cast<int64_t>(v)));
  }
}

template <typename V>
__global__ void __launch_bounds__(kMapThreads)
    CastElements(const __grid_constant__ MapOperands<1, 1> p) {
  for (int64_t item = int64_t{blockIdx.x} * kMapThreads + threadIdx.x; item < p.walk.items;
       item += int64_t{gridDim.x} * kMapThreads) {
    const Places<2> at = PlacesOf(p.walk, item);
    ConvertTo(p.data[1], at.at[1], p.dtype[1], ReadAs<V>(p.data[0], at.at[0], p.dtype[0]));
  }
}

// A thread's items lie a block apart, so that what a warp writes at once lies side by side.
constexpr int kItemsOfThread = 2;

// `kCount` elements in as many bytes as they take.
template <typename T, int kCount>
struct Packed {
  static constexpr int kWords = kCount * int{sizeof(T)} / 4;
  Vector<unsigned, kWords> words;
  static_assert(kWords == 2 || kWords == 4, "8 or 16 bytes");
};
template <typename T, int kCount>
__device__ Piece<float, kCount> UnpackItem(const Packed<T, kCount>& item) {
  Piece<float, kCount> v;
#pragma unroll
  for (int i = 0; i < Packed<T, kCount>::kWords; ++i) {
    const unsigned word = item.words.at[i];
    if constexpr (sizeof(T) == 4) {
      v.at[i] = __uint_as_float(word);
    } else {
      v.at[2 * i] = WidenLow(T(), word);
      v.at[2 * i + 1] = WidenHigh(T(), word);
    }
  }
  return v;
}
template <typename T, int kCount>
__device__ Packed<T, kCount> PackItem(const Piece<float, kCount>& v) {
  Packed<T, kCount> item;
#pragma unroll
  for (int i = 0; i < Packed<T, kCount>::kWords; ++i) {
    if constexpr (sizeof(T) == 4) {
      item.words.at[i] = __float_as_uint(v.at[i]);
    } else {
      item.words.at[i] = NarrowTwo(T(), v.at[2 * i], v.at[2 * i + 1]);
    }
  }
  return item;
}

template <typename From, typename To>
constexpr int kOfItem = 16 / int{sizeof(From) > sizeof(To) ? sizeof(From) : sizeof(To)};

template <typename From, typename To>
__global__ void __launch_bounds__(kMapThreads) CastRun(const From* x, To* out, int64_t items) {
  constexpr int kCount = kOfItem<From, To>;
  const auto* in = reinterpret_cast<const Packed<From, kCount>*>(x);
  auto* to = reinterpret_cast<Packed<To, kCount>*>(out);
  constexpr int kOfBlock = kItemsOfThread * kMapThreads;
  for (int64_t at = int64_t{blockIdx.x} * kOfBlock + threadIdx.x; at < items;
       at += int64_t{gridDim.x} * kOfBlock) {
    Packed<From, kCount> held[kItemsOfThread] = {};
#pragma unroll
    for (int i = 0; i < kItemsOfThread; ++i) {
      if (at + i * kMapThreads < items) held[i] = in[at + i * kMapThreads];
    }
#pragma unroll
    for (int i = 0; i < kItemsOfThread; ++i) {
      if (at + i * kMapThreads < items)
        to[at + i * kMapThreads] = PackItem<To, kCount>(UnpackItem(held[i]));
    }
  }
}

inline bool IsSmallFloat(AnyopDtype dtype) { return IsFloating(dtype) && dtype != kAnyopFloat64; }

inline int32_t RunCastElements(AnyopCall* call, const MapOperands<1, 1>& p) {
  const Launch launch = MapLaunch(p.walk.items);
  if (p.dtype[0] == kAnyopFloat64) return launch.Run(call, CastElements<double>, p);
  return IsFloating(p.dtype[0]) ? launch.Run(call, CastElements<float>, p)
                                : launch.Run(call, CastElements<int64_t>, p);
}

template <typename Body>
int32_t WithSmallFloat(AnyopDtype dtype, const Body& body) {
  return dtype == kAnyopFloat32   ? body(float())
         : dtype == kAnyopFloat16 ? body(__half())
                                  : body(__nv_bfloat16());
}

inline int32_t RunConversion(AnyopCall* call, MapOperands<1, 1> p) {
  const bool side_by_side = p.walk.ndim == 1 && p.walk.step[0][0] == 1 && p.walk.step[1][0] == 1;
  const int64_t wider =
      p.dtype[0] == kAnyopFloat32 || p.dtype[1] == kAnyopFloat32 ? sizeof(float) : 2;
  const int64_t items = p.walk.items * wider / 16, done = items * 16 / wider;
  if (!side_by_side || items == 0 || !IsSmallFloat(p.dtype[0]) || !IsSmallFloat(p.dtype[1]) ||
      !IsAligned(p.data[0], 16) || !IsAligned(p.data[1], 16))
    return RunCastElements(call, p);
  const int32_t status = WithSmallFloat(p.dtype[0], [&](auto from) {
    return WithSmallFloat(p.dtype[1], [&](auto to) {
      using From = decltype(from);
      using To = decltype(to);
      return MapLaunch(CeilDiv(items, kItemsOfThread))
          .Run(call, CastRun<From, To>, reinterpret_cast<const From*>(p.data[0]),
               reinterpret_cast<To*>(p.data[1]), items);
    });
  });
  if (status || done == p.walk.items) return status;
  const int64_t rest = p.walk.items - done;
  p.data[0] += done * (p.dtype[0] == kAnyopFloat32 ? 4 : 2);
  p.data[1] += done * (p.dtype[1] == kAnyopFloat32 ? 4 : 2);
  p.walk.Cut(rest);
  return RunCastElements(call, p);
}

// One dtype: its bits, as those of an integer.
inline int32_t RunCopy(AnyopCall* call, MapOperands<1, 1> p, int bits) {
  const auto as = [&](AnyopDtype dtype) { p.dtype[0] = p.dtype[1] = dtype; };
  switch (bits) {
    case 64:
      as(kAnyopInt64);
      return RunItems<uint64_t, uint64_t>(call, Same(), p);
    case 32:
      as(kAnyopInt32);
      return RunItems<uint32_t, uint64_t>(call, Same(), p);
    case 16:
      as(kAnyopInt16);
      return RunItems<uint16_t, uint64_t>(call, Same(), p);
    default:
      as(kAnyopUInt8);
      return RunItems<uint8_t, uint64_t>(call, Same(), p);
  }
}

// out = x, as its dtype.
inline int32_t RunCast(AnyopCall* call, const AnyopTensor* x, const AnyopTensor* out) {
  const AnyopTensor* const operands[] = {x, out};
  const MapOperands<1, 1> p(operands);
  if (p.walk.items == 0) return kAnyopOk;
  return p.dtype[0] == p.dtype[1] ? RunCopy(call, p, x->dtype_bits) : RunConversion(call, p);
}

}  // namespace
}  // namespace anyop::cuda
