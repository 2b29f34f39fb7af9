// SPDX-License-Identifier: Apache-2.0
// Writes rows of keys and values to the places of a cache that slots name: a thread has 16 bytes of
// a row, or an element where rows are no multiples of 16 bytes, of each of its block's tokens. Each
// number is read and written once.
#include "../quant/quantize_cuda.h"
#include "anyop/ops/append_kv.h"
#include "append_slots_cuda.h"

namespace anyop::cuda {
namespace {

constexpr int kAppendThreads = 256;

// Keys, or values.
struct AppendHalf {
  void* cache;
  const void* rows;
  const float* scale;  // nullptr: 1
  int64_t page_step, place_step, cache_head_step, token_step, head_step, scale_step, pieces;
  bool read_aligned, write_aligned;
};
// Where a thread is in a token's keys and values.
struct AppendPlace {
  const AppendHalf& half;
  int64_t g, piece;
};
struct AppendView {
  AppendHalf keys, values;
  Slots slots;
  int64_t G;
  AnyopDtype to;

  __host__ __device__ int64_t PerHead() const { return keys.pieces + values.pieces; }
  // Of the G * PerHead() pieces of a token.
  __device__ AppendPlace PlaceOf(int64_t i) const {
    const int64_t g = Divide(i, PerHead()), piece = i - g * PerHead();
    if (piece < keys.pieces) return {keys, g, piece};
    return {values, g, piece - keys.pieces};
  }
};

// kPer numbers as words of To.
template <int kPer>
__device__ void NarrowAll(float, const Piece<float, kPer>& numbers, uint32_t* words) {
#pragma unroll
  for (int i = 0; i < kPer; ++i) words[i] = __float_as_uint(numbers[i]);
}
template <int kPer>
__device__ void NarrowAll(uint8_t, const Piece<float, kPer>& numbers, uint32_t* words) {
#pragma unroll
  for (int i = 0; i < kPer; ++i)
    words[i / 4] = (i % 4 ? words[i / 4] : 0) | ToE4M3(numbers[i]) << 8 * (i % 4);
}
template <int kPer, typename To>
__device__ void NarrowAll(To zero, const Piece<float, kPer>& numbers, uint32_t* words) {
#pragma unroll
  for (int i = 0; i < kPer; i += 2) words[i / 2] = NarrowTwo(zero, numbers[i], numbers[i + 1]);
}
template <typename To, int kPer>
__device__ void Store(To* to, bool aligned, const Piece<float, kPer>& numbers) {
  if constexpr (kPer == 1) {
    if constexpr (sizeof(To) == 1) {
      *to = static_cast<uint8_t>(ToE4M3(numbers[0]));
    } else {
      *to = Narrow<To>(numbers[0]);
    }
  } else {
    constexpr int kWords = kPer * sizeof(To) / 4;
    uint32_t words[kWords];
    NarrowAll<kPer>(To(), numbers, words);
    if (aligned) return StoreWords<kWords>(to, words);
    using Bits = std::conditional_t<sizeof(To) == 4, uint32_t,
                                    std::conditional_t<sizeof(To) == 2, uint16_t, uint8_t>>;
    constexpr int kEach = 4 / sizeof(To);
#pragma unroll
    for (int i = 0; i < kPer; ++i)
      reinterpret_cast<Bits*>(to)[i] =
          static_cast<Bits>(words[i / kEach] >> 8 * sizeof(To) * (i % kEach));
  }
}

// A piece of a token's row, times its scale, which needs no slot.
template <typename From, int kPer>
__device__ Piece<float, kPer> ReadRow(const AppendHalf& half, int64_t t, int64_t g, int64_t piece) {
  const From* from =
      static_cast<const From*>(half.rows) + t * half.token_step + g * half.head_step + piece * kPer;
  auto numbers = ReadPiece<kPer>(from, half.read_aligned);
  if (half.scale) {
    const float factor = Scale::Given(half.scale[g * half.scale_step]).factor;
#pragma unroll
    for (int i = 0; i < kPer; ++i) numbers.at[i] *= factor;
  }
  return numbers;
}

template <typename To, int kPer>
__device__ void StoreRows(const AppendView& p, const AppendHalf& half, int64_t at,
                          const int64_t (&slots)[kTokens],
                          const Piece<float, kPer> (&numbers)[kTokens]) {
#pragma unroll
  for (int n = 0; n < kTokens; ++n) {
    if (slots[n] == Slots::kNone) continue;
    const int64_t row = p.slots.RowOf(slots[n], half.page_step, half.place_step);
    Store(static_cast<To*>(half.cache) + row + at, half.write_aligned, numbers[n]);
  }
}

template <typename From, int kPer>
__global__ __launch_bounds__(kAppendThreads) void Append(const __grid_constant__ AppendView p) {
  WaitForWork();
  LetNextStart();
  if (p.slots.First() >= p.slots.T) return;
  int64_t slots[kTokens];
#pragma unroll
  for (int n = 0; n < kTokens; ++n) slots[n] = p.slots.Of(n);
  const int64_t work = p.G * p.PerHead();
  for (int64_t i = threadIdx.x; i < work; i += blockDim.x) {
    const auto [half, g, piece] = p.PlaceOf(i);
    Piece<float, kPer> numbers[kTokens];
#pragma unroll
    for (int n = 0; n < kTokens; ++n)
      numbers[n] = ReadRow<From, kPer>(half, p.slots.TokenOf(n), g, piece);
    const int64_t at = g * half.cache_head_step + piece * kPer;
    switch (p.to) {
      case kAnyopFloat32:
        StoreRows<float, kPer>(p, half, at, slots, numbers);
        break;
      case kAnyopFloat16:
        StoreRows<__half, kPer>(p, half, at, slots, numbers);
        break;
      case kAnyopBFloat16:
        StoreRows<__nv_bfloat16, kPer>(p, half, at, slots, numbers);
        break;
      default:
        StoreRows<uint8_t, kPer>(p, half, at, slots, numbers);
    }
  }
}

// Rows that stay as they are, in pieces of 16 bytes; all steps are in bytes.
__global__ __launch_bounds__(kAppendThreads) void Copy(const __grid_constant__ AppendView p) {
  WaitForWork();
  LetNextStart();
  if (p.slots.First() >= p.slots.T) return;
  const int64_t work = p.G * p.PerHead();
  for (int64_t i = threadIdx.x; i < work; i += blockDim.x) {
    const auto [half, g, piece] = p.PlaceOf(i);
    const char* from = static_cast<const char*>(half.rows) + g * half.head_step + piece * 16;
    char* to = static_cast<char*>(half.cache) + g * half.cache_head_step + piece * 16;
    uint4 bits[kTokens];
#pragma unroll
    for (int n = 0; n < kTokens; ++n)
      bits[n] = *reinterpret_cast<const uint4*>(from + p.slots.TokenOf(n) * half.token_step);
#pragma unroll
    for (int n = 0; n < kTokens; ++n) {
      const int64_t slot = p.slots.Of(n);
      if (slot == Slots::kNone) continue;
      *reinterpret_cast<uint4*>(to + p.slots.RowOf(slot, half.page_step, half.place_step)) =
          bits[n];
    }
  }
}

bool AllMultiples(const AnyopTensor& x, int64_t per) {
  bool whole = x.shape[x.ndim - 1] % per == 0;
  for (int d = 0; d + 1 < x.ndim; ++d) whole &= x.strides[d] % per == 0 || x.shape[d] <= 1;
  return whole && IsAligned(static_cast<const char*>(x.data),
                            static_cast<uintptr_t>(per * x.dtype_bits / 8));
}

AppendHalf HalfOf(const AnyopTensor& cache, const AnyopTensor& rows, const AnyopTensor* scale,
                  int64_t per) {
  return {cache.data,
          rows.data,
          scale ? static_cast<const float*>(scale->data) : nullptr,
          cache.strides[0],
          cache.strides[1],
          cache.strides[2],
          rows.strides[0],
          rows.strides[1],
          scale ? scale->strides[0] : 0,
          cache.shape[3] / per,
          AllMultiples(rows, per),
          AllMultiples(cache, per)};
}

AppendHalf InBytes(AppendHalf half, int64_t size) {
  for (int64_t* step : {&half.page_step, &half.place_step, &half.cache_head_step, &half.token_step,
                        &half.head_step})
    *step *= size;
  return half;
}

template <typename From, int kPer>
int32_t RunPieces(const AppendKvArgs& args, AnyopCall* call) {
  const AppendView view = {HalfOf(*args.k_cache, *args.k, args.k_scale, kPer),
                           HalfOf(*args.v_cache, *args.v, args.v_scale, kPer), SlotsOf(args),
                           args.G, AnyopDtypeOf(args.k_cache)};
  const int64_t work = args.G * view.PerHead();
  if (args.T == 0 || work == 0 || view.slots.places == 0) return kAnyopOk;
  const auto copies = [&](const AppendHalf& half) {
    return !half.scale && half.read_aligned && half.write_aligned;
  };
  Launch launch = LaunchOfTokens(view.slots, work, kAppendThreads);
  launch.overlaps = true;
  if (kPer > 1 && view.to == AnyopDtypeOf(args.k) && copies(view.keys) && copies(view.values)) {
    const AppendView bytes = {InBytes(view.keys, sizeof(From)), InBytes(view.values, sizeof(From)),
                              view.slots, view.G, view.to};
    return launch.Run(call, Copy, bytes);
  }
  return launch.Run(call, Append<From, kPer>, view);
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_append_kv_cuda(const AppendKvArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  return WithFloat32Sums(AnyopDtypeOf(args->k), [&](auto zero) {
    using T = decltype(zero);
    constexpr int kPer = kPerVector<T>;
    const bool vectors = args->D % kPer == 0 && args->E % kPer == 0;
    return vectors ? RunPieces<T, kPer>(*args, call) : RunPieces<T, 1>(*args, call);
  });
}
