// SPDX-License-Identifier: Apache-2.0
// The parts of a sequence's keys, joined in their order: a warp for a token's head.
#pragma once

#include "attention_paged_view.h"
#include "attention_plain.h"

namespace anyop::cuda {
namespace {

__device__ inline float LargerOrNan(float a, float b) { return a <= b || b != b ? b : a; }

// A block has a token, blockIdx.x, its warps four of the heads.
template <typename T, int kFeatures = kPlainFeatures>
__global__ __launch_bounds__(128) void JoinParts(const __grid_constant__ PagedView p) {
  WaitForWork();
  if (p.cu_q && !AreInOrder<128>(p.cu_q, p.B, p.S)) return;
  const int token = static_cast<int>(blockIdx.x),
            h = static_cast<int>(blockIdx.y) * 4 + threadIdx.x / 32;
  if (h >= p.H) return;
  const int lane = threadIdx.x % 32, b = SequenceOf(p, token);
  const int64_t length = p.LengthOf(b);
  const bool has_parts = length > 0 && length <= p.places;  // else one
  const int64_t count =
      has_parts ? (static_cast<uint32_t>(length) + p.part - 1) / static_cast<uint32_t>(p.part) : 1;
  const auto at = [&](int64_t part) { return (part * p.S + token) * p.H + h; };
  const float sink = p.sinks ? p.sinks[h] * 1.44269504088896340736f : -INFINITY;
  const auto lse_of = [&](int64_t part) {
    return part < count ? p.parts_lse[at(part)] : -INFINITY;
  };
  float most = p.sinks ? sink : -INFINITY;
  for (int64_t i = lane; i - lane < count; i += 32) {
    float lse = lse_of(i);
    for (int by = 16; by > 0; by /= 2) lse = LargerOrNan(lse, __shfl_xor_sync(~0u, lse, by));
    most = LargerOrNan(most, lse);
  }
  const float base = most == -INFINITY ? 0 : most;
  float sum = 0, values[kFeatures / 32] = {};
  for (int64_t i = 0; i < count; i += 32) {
    const float mine = PowerOfTwo(lse_of(i + lane) - base);
    const int here = static_cast<int>(std::min<int64_t>(count - i, 32));
#pragma unroll(kFeatures > 256 ? 1 : 2)
    for (int n = 0; n < here; ++n) {  // in their order
      const float weight = __shfl_sync(~0u, mine, n);
      const float* part = p.parts + at(i + n) * p.E;
      sum += weight;
#pragma unroll
      for (int k = 0; k < kFeatures / 32; ++k) {
        const float value = lane + 32 * k < p.E ? part[lane + 32 * k] : 0;
        if (weight != 0) values[k] = MulAdd(weight, value, values[k]);
      }
    }
  }
  const float total = sum + (p.sinks ? PowerOfTwo(sink - base) : 0);
  const float share = sum == 0 ? 0 : 1 / total;
  T* to = static_cast<T*>(p.out) + p.At(p.out_steps, h, token);
#pragma unroll
  for (int k = 0; k < kFeatures / 32; ++k)
    if (lane + 32 * k < p.E) to[lane + 32 * k] = Narrow<T>(share == 0 ? 0 : values[k] * share);
  if (p.lse && lane == 0)
    p.lse[p.At(p.lse_steps, h, token)] = (base + log2f(total)) * 0.69314718055994530942f;
}

// ---- host ----

// Divides the keys of a sequence into parts of so many, where that is more than one, and takes the
// memory for their results.
inline int32_t TakeParts(AnyopCall* call, int64_t part, PagedView* p) {
  if (part >= p->places) return kAnyopOk;
  const int64_t count = CeilDiv(p->places, part), rows = count * p->S * p->H;
  if (count > 65535)
    return call->fail(call, kAnyopValueError,
                      "split_size makes more than 65,535 parts of the keys of a sequence");
  auto* parts = static_cast<float*>(
      call->workspace(call, rows * (p->E + 1) * static_cast<int64_t>(sizeof(float))));
  if (!parts) return call->fail(call, kAnyopOutOfMemory, "no memory for the parts of the keys");
  p->count = static_cast<int>(count), p->part = static_cast<int>(part);
  p->parts = parts, p->parts_lse = parts + rows * p->E;
  return kAnyopOk;
}

}  // namespace
}  // namespace anyop::cuda
