// SPDX-License-Identifier: Apache-2.0
// Writes latent rows to the places of a cache that slots name: a block has a token. Rows of floats
// are copied, 16 bytes a thread or an element; rows of 656 bytes get a warp for each scale.
#include "../quant/quantize_cuda.h"
#include "anyop/ops/append_latent.h"
#include "anyop/ops/append_latent_fp8.h"
#include "latent_row_cuda.h"

namespace anyop::cuda {
namespace {

struct LatentSlots {
  const void* slots;
  int64_t T, P, places, page_step, place_step;
  bool is_wide;

  static constexpr int64_t kNone = INT64_MIN;
  // Elements to the row of a token.
  __device__ int64_t RowOf(int64_t t) const {
    const int64_t slot =
        is_wide ? static_cast<const int64_t*>(slots)[t] : static_cast<const int32_t*>(slots)[t];
    if (slot < 0 || slot >= places) return kNone;
    const int64_t page = slot / P;
    return page * page_step + (slot - page * P) * place_step;
  }
};
template <typename Args>
LatentSlots SlotsOf(const Args& args) {
  return {args.slots->data,
          args.T,
          args.P,
          args.N * args.P,
          args.cache->strides[0],
          args.cache->strides[1],
          args.slots->dtype_bits == 64};
}
__device__ inline int64_t TokenOf() { return blockIdx.x + int64_t{blockIdx.y} * INT32_MAX; }

struct LatentCopy {
  LatentSlots at;
  void* cache;
  const void *latent, *rope;
  int64_t latent_step, rope_step, R, W;
};

// kPer elements at once of rows of From, to rows of To.
template <typename From, typename To, int kPer>
__global__ __launch_bounds__(128) void AppendLatent(const __grid_constant__ LatentCopy p) {
  const int64_t t = TokenOf();
  const int64_t row = t < p.at.T ? p.at.RowOf(t) : LatentSlots::kNone;
  if (row == LatentSlots::kNone) return;
  for (int64_t i = int64_t{threadIdx.x} * kPer; i < p.W; i += 128 * kPer) {
    const From* from = i < p.R ? static_cast<const From*>(p.latent) + t * p.latent_step + i
                               : static_cast<const From*>(p.rope) + t * p.rope_step + i - p.R;
    To* to = static_cast<To*>(p.cache) + row + i;
    if constexpr (kPer > 1) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    } else {
      *to = Narrow<To>(Widen(*from));
    }
  }
}

struct LatentBytes {
  LatentSlots at;
  uint8_t* cache;
  const void *latent, *rope;
  int64_t latent_step, rope_step;
};

template <typename From>
__global__ __launch_bounds__(128) void AppendLatentBytes(const __grid_constant__ LatentBytes p) {
  const int64_t t = TokenOf();
  const int64_t row = t < p.at.T ? p.at.RowOf(t) : LatentSlots::kNone;
  if (row == LatentSlots::kNone) return;
  const int g = static_cast<int>(threadIdx.x) / 32, lane = threadIdx.x % 32;
  const int first = g * kLatentGroup + 4 * lane;
  const From* latent = static_cast<const From*>(p.latent) + t * p.latent_step + first;
  float numbers[4];
  unsigned most = 0;  // of magnitudes, by bits: NaN is the greatest
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    numbers[i] = Widen(latent[i]);
    most = std::max(most, __float_as_uint(numbers[i]) & 0x7fffffffu);
  }
  for (int by = 16; by > 0; by /= 2) most = std::max(most, __shfl_xor_sync(~0u, most, by));
  const Scale scale = Scale::Of(__uint_as_float(most), kGreatestE4M3, 1 / kGreatestE4M3);
  uint8_t* to = p.cache + row;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    to[first + i] = static_cast<uint8_t>(ToE4M3(numbers[i] * scale.factor));
  if (lane < 4)
    to[kLatentScalesAt + 4 * g + lane] =
        static_cast<uint8_t>(__float_as_uint(scale.value) >> 8 * lane);
  if (threadIdx.x >= 64) return;
  const auto* rope = static_cast<const From*>(p.rope) + t * p.rope_step;
  const __nv_bfloat16 key = Narrow<__nv_bfloat16>(Widen(rope[threadIdx.x]));
  const auto* bytes = reinterpret_cast<const uint8_t*>(&key);
  to[kLatentKeyAt + 2 * threadIdx.x] = bytes[0], to[kLatentKeyAt + 2 * threadIdx.x + 1] = bytes[1];
}

Launch LaunchOfTokens(int64_t tokens) {
  const int64_t columns = std::min<int64_t>(tokens, INT32_MAX);
  return {dim3(static_cast<unsigned>(columns), static_cast<unsigned>(CeilDiv(tokens, columns))),
          dim3(128)};
}

template <typename From, typename To>
int32_t RunCopy(const LatentCopy& p, AnyopCall* call) {
  constexpr int kPer = 16 / sizeof(To);
  const auto is_whole = [&](const void* data, int64_t step) {
    return IsAligned(static_cast<const char*>(data), 16) && step % kPer == 0;
  };
  const bool whole = std::is_same_v<From, To> && p.R % kPer == 0 && p.W % kPer == 0 &&
                     is_whole(p.cache, p.at.page_step) && is_whole(p.cache, p.at.place_step) &&
                     is_whole(p.latent, p.latent_step) && is_whole(p.rope, p.rope_step);
  const Launch launch = LaunchOfTokens(p.at.T);
  if constexpr (std::is_same_v<From, To>) {
    if (whole) return launch.Run(call, AppendLatent<From, To, kPer>, p);
  }
  return launch.Run(call, AppendLatent<From, To, 1>, p);
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
  const LatentCopy p = {SlotsOf(*args),
                        args->cache->data,
                        args->latent->data,
                        args->rope->data,
                        args->latent->strides[0],
                        args->rope->strides[0],
                        args->R,
                        args->W};
  if (args->T == 0 || args->W == 0 || p.at.places == 0) return kAnyopOk;
  return WithLatentType(AnyopDtypeOf(args->latent), [&](auto from) {
    return WithLatentType(AnyopDtypeOf(args->cache),
                          [&](auto to) { return RunCopy<decltype(from), decltype(to)>(p, call); });
  });
}

extern "C" int32_t anyop_append_latent_fp8_cuda(const AppendLatentFp8Args* args, AnyopCall* call) {
  using namespace anyop::cuda;
  const LatentBytes p = {SlotsOf(*args),           static_cast<uint8_t*>(args->cache->data),
                         args->latent->data,       args->rope->data,
                         args->latent->strides[0], args->rope->strides[0]};
  if (args->T == 0 || p.at.places == 0) return kAnyopOk;
  return WithLatentType(AnyopDtypeOf(args->latent), [&](auto from) {
    return LaunchOfTokens(args->T).Run(call, AppendLatentBytes<decltype(from)>, p);
  });
}
