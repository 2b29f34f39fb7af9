// SPDX-License-Identifier: Apache-2.0
// The parts of a sequence's keys, joined: a block for a token's head. Each warp adds up every
// fourth part, and the four sums come together in their order, so that the bits follow from the
// number of parts alone.
#pragma once

#include "attention_paged_view.h"
#include "attention_plain.h"

namespace anyop::cuda {
namespace {

__device__ inline float LargerOrNan(float a, float b) { return a <= b || b != b ? b : a; }

// blockIdx: the token, and its head.
template <typename T, int kFeatures = kPlainFeatures>
__global__ __launch_bounds__(128) void JoinParts(const __grid_constant__ PagedView p) {
  __shared__ float values[4][kFeatures], sums[4];
  WaitForWork();
  if (p.cu_q && !AreInOrder<128>(p.cu_q, p.B, p.S)) return;
  const int token = static_cast<int>(blockIdx.x), h = static_cast<int>(blockIdx.y);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t length = p.LengthOf(SequenceOf(p, token));
  const bool has_parts = length > 0 && length <= p.places;  // else one
  const int count = has_parts ? static_cast<int>((static_cast<uint32_t>(length) + p.part - 1) /
                                                 static_cast<uint32_t>(p.part))
                              : 1;
  const auto at = [&](int part) { return (int64_t{part} * p.S + token) * p.H + h; };
  // The first parts of each warp are on their way while the greatest logarithm is looked for.
  constexpr int kAhead = kFeatures > 256 ? 2 : 4, kOwn = kFeatures / 32;
  float ahead[kAhead][kOwn], lses[kAhead];
#pragma unroll
  for (int n = 0; n < kAhead; ++n) {
    const int i = warp + 4 * n;
    lses[n] = i < count ? p.parts_lse[at(i)] : -INFINITY;
#pragma unroll
    for (int k = 0; k < kOwn; ++k)
      ahead[n][k] = i < count && lane + 32 * k < p.E ? p.parts[at(i) * p.E + lane + 32 * k] : 0;
  }
  float most = -INFINITY;
  for (int i = lane; i - lane < count; i += 32) {
    float lse = i < count ? p.parts_lse[at(i)] : -INFINITY;
    for (int by = 16; by > 0; by /= 2) lse = LargerOrNan(lse, __shfl_xor_sync(~0u, lse, by));
    most = LargerOrNan(most, lse);
  }
  const float base = most == -INFINITY ? 0 : most;
  float sum = 0, mine[kOwn] = {};
  const auto add = [&](float lse, auto value_of) {
    const float weight = PowerOfTwo(lse - base);
    sum += weight;
#pragma unroll
    for (int k = 0; k < kOwn; ++k)
      if (weight != 0) mine[k] = MulAdd(weight, value_of(k), mine[k]);
  };
#pragma unroll
  for (int n = 0; n < kAhead; ++n)
    if (warp + 4 * n < count) add(lses[n], [&](int k) { return ahead[n][k]; });
#pragma unroll(kFeatures > 256 ? 2 : 4)
  for (int i = warp + 4 * kAhead; i < count; i += 4) {
    const float* part = p.parts + at(i) * p.E;
    add(p.parts_lse[at(i)], [&](int k) { return lane + 32 * k < p.E ? part[lane + 32 * k] : 0; });
  }
  if (lane == 0) sums[warp] = sum;
#pragma unroll
  for (int k = 0; k < kOwn; ++k) values[warp][lane + 32 * k] = mine[k];
  __syncthreads();
  sum = sums[0] + sums[1] + sums[2] + sums[3];
  const PagedEnd end = EndSum(p.sinks, h, most, sum);
  T* to = static_cast<T*>(p.out) + p.At(p.out_steps, h, token);
  for (int e = threadIdx.x; e < p.E; e += 128) {
    const float value = values[0][e] + values[1][e] + values[2][e] + values[3][e];
    to[e] = Narrow<T>(end.share == 0 ? 0 : value * end.share);
  }
  if (p.lse && threadIdx.x == 0)
    p.lse[p.At(p.lse_steps, h, token)] = end.lse * 0.69314718055994530942f;
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

// Behind the kernel that made the parts.
template <typename T, int kFeatures = kPlainFeatures>
int32_t RunJoin(const PagedView& p, AnyopCall* call) {
  if (p.count == 1) return kAnyopOk;
  const Launch join = {dim3(static_cast<unsigned>(p.S), static_cast<unsigned>(p.H)), dim3(128), 0,
                       true};
  return join.Run(call, JoinParts<T, kFeatures>, p);
}

}  // namespace
}  // namespace anyop::cuda
