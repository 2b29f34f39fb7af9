// SPDX-License-Identifier: Apache-2.0
// moe_route on CUDA: a warp a token. Lane l holds the keys of experts l, l + 32, ... in registers;
// top_k times the warp finds the greatest one left, equal ones by expert, and lane j keeps the
// j-th. Keys go through shared memory only where groups are chosen. E elements read, 2 top_k
// written for a token.
#include "anyop/cuda.h"
#include "anyop/ops/moe_route.h"
#include "route_cuda.h"

namespace anyop::cuda {
namespace {

constexpr int kWarps = 4;

struct Routing {
  const void* logits;
  const float* bias;
  float* weights;
  int32_t* ids;
  int64_t tokens;
  int E, top_k, groups, top_groups;
  Score score;
  bool renormalize, of_chosen;  // OfChosen
  float scale;
};

// Greatest key and, of equal ones, least index of the warp.
__device__ void Greatest(float* key, int* index) {
#pragma unroll
  for (int step = 16; step; step /= 2) {
    const float other = __shfl_xor_sync(~0u, *key, step);
    const int at = __shfl_xor_sync(~0u, *index, step);
    if (other > *key || (other == *key && at < *index)) *key = other, *index = at;
  }
}

// The mark of the groups of one token that may be chosen, 1 in scores; keys and scores: shared.
__device__ void ChooseGroups(const Routing& p, const float* keys, float* scores, uint8_t* chosen) {
  const int lane = threadIdx.x % 32, members = p.E / p.groups;
  for (int g = lane; g < p.groups; g += 32) {
    float best = Least(), second = Least();
    for (int e = g * members; e < (g + 1) * members; ++e) {
      const float key = keys[e];
      second = fmaxf(second, fminf(best, key));
      best = fmaxf(best, key);
    }
    const float sum = p.bias && members > 1 ? best + second : best;
    scores[g] = sum == sum ? sum : Least();
    chosen[g] = 0;
  }
  __syncwarp();
  for (int i = 0; i < p.top_groups; ++i) {
    float best = Least();
    int at = p.groups;
    for (int g = lane; g < p.groups; g += 32)
      if (!chosen[g] && (at == p.groups || scores[g] > best)) best = scores[g], at = g;
    Greatest(&best, &at);
    if (at % 32 == lane) chosen[at] = 1;
    __syncwarp();
  }
}

template <typename T, int kPer>
__global__ void __launch_bounds__(kWarps * 32) Route(const __grid_constant__ Routing p) {
  __shared__ float shared_keys[kWarps][kPer * 32], shared_scores[kWarps][kPer * 32];
  __shared__ uint8_t shared_chosen[kWarps][kPer * 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t t = int64_t{blockIdx.x} * kWarps + warp;
  if (t >= p.tokens) return;
  const T* row = static_cast<const T*>(p.logits) + t * p.E;
  float keys[kPer];
  unsigned open = 0;  // bit i: expert lane + 32 i may be chosen
  float most = Least();
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    const int e = lane + 32 * i;
    keys[i] = e < p.E ? Widen(row[e]) : Least();
    if (e < p.E) open |= 1u << i;
    most = fmaxf(most, keys[i]);
  }
  most = OfWarp(most, Most());
  float sum = 1;
  if (p.score == Score::kSoftmax && (p.bias || !p.renormalize)) {
    sum = 0;
#pragma unroll
    for (int i = 0; i < kPer; ++i)
      if (open >> i & 1) sum += Exponential(keys[i] - most);
    sum = OfWarp(sum, Sum());
  }
  const auto score = [&](float x) {
    return p.score == Score::kSoftmax ? Exponential(x - most) / sum : SigmoidOf(x);
  };
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    if (p.bias && open >> i & 1) {
      if (p.score != Score::kTopkSoftmax) keys[i] = score(keys[i]);
      keys[i] += p.bias[lane + 32 * i];
    }
    if (keys[i] != keys[i]) keys[i] = Least();
  }
  if (p.top_groups < p.groups) {
#pragma unroll
    for (int i = 0; i < kPer; ++i) shared_keys[warp][lane + 32 * i] = keys[i];
    __syncwarp();
    ChooseGroups(p, shared_keys[warp], shared_scores[warp], shared_chosen[warp]);
    const int members = p.E / p.groups;
#pragma unroll
    for (int i = 0; i < kPer; ++i)
      if (open >> i & 1 && !shared_chosen[warp][(lane + 32 * i) / members]) open &= ~(1u << i);
  }
  int mine = 0;
  for (int j = 0; j < p.top_k; ++j) {
    float best = Least();
    int at = 1 << 20;
#pragma unroll
    for (int i = 0; i < kPer; ++i)
      if (open >> i & 1 && (at == 1 << 20 || keys[i] > best)) best = keys[i], at = lane + 32 * i;
    Greatest(&best, &at);
    if (at % 32 == lane) open &= ~(1u << at / 32);
    if (j == lane) mine = at;
  }
  const bool is_there = lane < p.top_k;
  const float logit = is_there ? Widen(row[mine]) : Least();
  float weight = 0;
  if (p.of_chosen) {
    const float greatest = OfWarp(logit, Most());
    weight = is_there ? Exponential(logit - greatest) : 0;
    weight = weight / OfWarp(weight, Sum());
  } else {
    weight = is_there ? score(logit) : 0;
    if (p.renormalize) weight = weight / (OfWarp(weight, Sum()) + 1e-20f);
  }
  if (!is_there) return;
  p.weights[t * p.top_k + lane] = weight * p.scale;
  p.ids[t * p.top_k + lane] = mine;
}

template <typename T>
int32_t Run(AnyopCall* call, const Routing& p) {
  const Launch launch{dim3(static_cast<unsigned>(CeilDiv(p.tokens, kWarps))), dim3(kWarps * 32)};
  if (p.E <= 128) return launch.Run(call, Route<T, 4>, p);
  return p.E <= 384 ? launch.Run(call, Route<T, 12>, p) : launch.Run(call, Route<T, 32>, p);
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_moe_route_cuda(const MoeRouteArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  if (args->T == 0 || args->top_k == 0) return kAnyopOk;
  const anyop::Score score = anyop::ScoreOf(args->score);
  const Routing p = {args->logits->data,
                     args->bias ? static_cast<const float*>(args->bias->data) : nullptr,
                     static_cast<float*>(args->weights->data),
                     static_cast<int32_t*>(args->ids->data),
                     args->T,
                     static_cast<int>(args->E),
                     static_cast<int>(args->top_k),
                     static_cast<int>(args->groups),
                     static_cast<int>(args->top_groups),
                     score,
                     args->renormalize != 0,
                     anyop::OfChosen(score, args->renormalize != 0),
                     static_cast<float>(args->scale)};
  return WithFloat32Sums(AnyopDtypeOf(args->logits),
                         [&](auto zero) { return Run<decltype(zero)>(call, p); });
}
