// SPDX-License-Identifier: Apache-2.0
// Writes latent rows to the places of a cache that slots name. Rows of floats are copied, 16 bytes
// a thread or an element of each of a block's tokens; rows of 656 bytes get a warp for each scale.
#include "../quant/quantize_cuda.h"
#include "anyop/ops/append_latent.h"
#include "anyop/ops/append_latent_fp8.h"
#include "append_slots_cuda.h"
#include "latent_row_cuda.h"

namespace anyop::cuda {
namespace {

constexpr int kLatentThreads = 128;

struct LatentView {
  Slots slots;
  void* cache;
  const void *latent, *rope;
  int64_t page_step, place_step, latent_step, rope_step, R, W;

  __device__ int64_t RowOf(int64_t slot) const { return slots.RowOf(slot, page_step, place_step); }
};

// kPer elements at once of rows of From, to rows of To.
template <typename From, typename To, int kPer>
__global__ __launch_bounds__(kLatentThreads) void AppendLatent(
    const __grid_constant__ LatentView p) {
  if (p.slots.First() >= p.slots.T) return;
  int64_t slots[kTokens];
#pragma unroll
  for (int n = 0; n < kTokens; ++n) slots[n] = p.slots.Of(n);
  for (int64_t i = int64_t{threadIdx.x} * kPer; i < p.W; i += blockDim.x * kPer) {
    const bool is_latent = i < p.R;
    const int64_t step = is_latent ? p.latent_step : p.rope_step;
    const From* from = is_latent ? static_cast<const From*>(p.latent) + i
                                 : static_cast<const From*>(p.rope) + i - p.R;
    using Piece = std::conditional_t<(kPer > 1), uint4, From>;
    Piece numbers[kTokens];
#pragma unroll
    for (int n = 0; n < kTokens; ++n)
      numbers[n] = *reinterpret_cast<const Piece*>(from + p.slots.TokenOf(n) * step);
#pragma unroll
    for (int n = 0; n < kTokens; ++n) {
      if (slots[n] == Slots::kNone) continue;
      To* to = static_cast<To*>(p.cache) + p.RowOf(slots[n]) + i;
      if constexpr (kPer > 1) {
        const uint32_t words[] = {numbers[n].x, numbers[n].y, numbers[n].z, numbers[n].w};
        StoreWords<4>(to, words);
      } else {
        *to = Narrow<To>(Widen(numbers[n]));
      }
    }
  }
}

// kCount elements, at once where all rows are multiples of their bytes.
template <int kCount, bool kWhole, typename From>
__device__ void ReadSome(const From* from, float (&numbers)[kCount]) {
  Vector<From, kCount> some;
  if constexpr (kWhole) some = *reinterpret_cast<const Vector<From, kCount>*>(from);
#pragma unroll
  for (int i = 0; i < kCount; ++i) numbers[i] = Widen(kWhole ? some.at[i] : from[i]);
}
template <bool kWhole>
__device__ void WriteWord(uint8_t* to, uint32_t word) {
  if constexpr (kWhole) {
    *reinterpret_cast<uint32_t*>(to) = word;
  } else {
    for (int i = 0; i < 4; ++i) to[i] = static_cast<uint8_t>(word >> 8 * i);
  }
}

// A thread has four numbers of each token, a warp a scale.
template <typename From, bool kWhole>
__global__ __launch_bounds__(128) void AppendLatentBytes(const __grid_constant__ LatentView p) {
  if (p.slots.First() >= p.slots.T) return;
  const int g = static_cast<int>(threadIdx.x) / 32, lane = threadIdx.x % 32;
  const int first = g * kLatentGroup + 4 * lane;
  float numbers[kTokens][4], keys[kTokens][2] = {};
#pragma unroll
  for (int n = 0; n < kTokens; ++n) {
    const int64_t t = p.slots.TokenOf(n);
    ReadSome<4, kWhole>(static_cast<const From*>(p.latent) + t * p.latent_step + first, numbers[n]);
    if (g == 0)
      ReadSome<2, kWhole>(static_cast<const From*>(p.rope) + t * p.rope_step + 2 * lane, keys[n]);
  }
#pragma unroll
  for (int n = 0; n < kTokens; ++n) {
    const int64_t slot = p.slots.Of(n);
    if (slot == Slots::kNone) continue;
    const float (&v)[4] = numbers[n];
    unsigned most = 0;  // of magnitudes, by bits: NaN is the greatest
#pragma unroll
    for (int i = 0; i < 4; ++i) most = std::max(most, __float_as_uint(v[i]) & 0x7fffffffu);
#pragma unroll
    for (int by = 16; by > 0; by /= 2) most = std::max(most, __shfl_xor_sync(~0u, most, by));
    const Scale scale = Scale::Of(__uint_as_float(most), kGreatestE4M3, 1 / kGreatestE4M3);
    uint8_t* to = static_cast<uint8_t*>(p.cache) + p.RowOf(slot);
    const float f = scale.factor;
    WriteWord<kWhole>(to + first, FourE4M3(v[0] * f, v[1] * f, v[2] * f, v[3] * f));
    if (lane == 0) WriteWord<kWhole>(to + kLatentScalesAt + 4 * g, __float_as_uint(scale.value));
    if (g == 0)
      WriteWord<kWhole>(to + kLatentKeyAt + 4 * lane,
                        NarrowTwo(__nv_bfloat16(), keys[n][0], keys[n][1]));
  }
}

template <typename Args>
LatentView ViewOf(const Args& args) {
  return {SlotsOf(args),           args.cache->data,
          args.latent->data,       args.rope->data,
          args.cache->strides[0],  args.cache->strides[1],
          args.latent->strides[0], args.rope->strides[0],
          args.latent->shape[1],   args.latent->shape[1] + args.rope->shape[1]};
}

template <typename From, typename To>
int32_t RunCopy(const LatentView& p, AnyopCall* call) {
  constexpr int kPer = 16 / sizeof(To);
  const auto is_whole = [&](const void* data, int64_t step) {
    return IsAligned(static_cast<const char*>(data), 16) && step % kPer == 0;
  };
  const bool whole = std::is_same_v<From, To> && p.R % kPer == 0 && p.W % kPer == 0 &&
                     is_whole(p.cache, p.page_step) && is_whole(p.cache, p.place_step) &&
                     is_whole(p.latent, p.latent_step) && is_whole(p.rope, p.rope_step);
  if constexpr (std::is_same_v<From, To>) {
    if (whole)
      return LaunchOfTokens(p.slots, p.W / kPer, kLatentThreads)
          .Run(call, AppendLatent<From, To, kPer>, p);
  }
  return LaunchOfTokens(p.slots, p.W, kLatentThreads).Run(call, AppendLatent<From, To, 1>, p);
}

template <typename Run>
int32_t WithLatentType(AnyopDtype dtype, const Run& run) {
  if (dtype == kAnyopFloat32) return run(float());
  return dtype == kAnyopFloat16 ? run(__half()) : run(__nv_bfloat16());
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_append_latent_cuda(const AppendLatentArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  const LatentView p = ViewOf(*args);
  if (args->T == 0 || p.W == 0 || p.slots.places == 0) return kAnyopOk;
  return WithLatentType(AnyopDtypeOf(args->latent), [&](auto from) {
    return WithLatentType(AnyopDtypeOf(args->cache),
                          [&](auto to) { return RunCopy<decltype(from), decltype(to)>(p, call); });
  });
}

extern "C" int32_t anyop_append_latent_fp8_cuda(const AppendLatentFp8Args* args, AnyopCall* call) {
  using namespace anyop::cuda;
  const LatentView p = ViewOf(*args);
  if (args->T == 0 || p.slots.places == 0) return kAnyopOk;
  return WithLatentType(AnyopDtypeOf(args->latent), [&](auto from) {
    using From = decltype(from);
    const auto whole = [](const void* data, int64_t step, int64_t per, uintptr_t bytes) {
      return step % per == 0 && IsAligned(static_cast<const char*>(data), bytes);
    };
    const Launch launch = LaunchOfTokens(p.slots, 128, 128);
    if (whole(p.cache, p.page_step, 4, 4) && p.place_step % 4 == 0 &&
        whole(p.latent, p.latent_step, 4, 4 * sizeof(From)) &&
        whole(p.rope, p.rope_step, 2, 2 * sizeof(From)))
      return launch.Run(call, AppendLatentBytes<From, true>, p);
    return launch.Run(call, AppendLatentBytes<From, false>, p);
  });
}
