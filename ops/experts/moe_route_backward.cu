// SPDX-License-Identifier: Apache-2.0
// moe_route_backward on CUDA: a warp a token, lane j its j-th expert. The row of gradients is
// summed in shared memory, in the order of j; 2 E elements moved for a token.
#include "anyop/ops/moe_route_backward.h"
#include "route_cuda.h"

namespace anyop::cuda {
namespace {

constexpr int kWarps = 4, kMostExperts = 1024;

struct Gradient {
  const float* grad_weights;
  const void* logits;
  const float* weights;
  const int32_t* ids;
  void* grad_logits;
  int64_t tokens;
  int E, K;
  Score score;
  bool renormalize;
  float scale;
};

template <typename T>
__global__ void __launch_bounds__(kWarps * 32) Differentiate(const __grid_constant__ Gradient p) {
  __shared__ float shared[kWarps][kMostExperts];
  const int lane = threadIdx.x % 32;
  float* grads = shared[threadIdx.x / 32];
  const int64_t t = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (t >= p.tokens) return;
  const T* row = static_cast<const T*>(p.logits) + t * p.E;
  const bool is_there = lane < p.K;
  const float g = is_there ? p.grad_weights[t * p.K + lane] : 0;
  const float w = is_there ? p.weights[t * p.K + lane] : 0;
  int id = is_there ? p.ids[t * p.K + lane] : -1;
  if (id >= p.E) id = -1;
  const float dot = OfWarp(g * w, Sum()), sum = OfWarp(w, Sum());
  const bool of_all = p.score == Score::kSoftmax && !p.renormalize;
  const bool of_each = p.score == Score::kSigmoid && !p.renormalize;
  const float mean = of_each || sum == 0 ? 0 : dot / sum;
  float grad = of_all ? p.scale * g : w * (g - mean);
  if (p.score == Score::kSigmoid && id >= 0) grad *= 1 / (1 + Exponential(Widen(row[id])));
  for (int e = lane; e < p.E; e += 32) grads[e] = 0;
  for (int j = 0; j < p.K; ++j) {  // one after the other: two may be of one expert
    __syncwarp();
    if (j == lane && id >= 0) grads[id] += grad;
  }
  __syncwarp();
  float most = Least(), total = 0;
  if (of_all) {
    for (int e = lane; e < p.E; e += 32) most = fmaxf(most, Widen(row[e]));
    most = OfWarp(most, Most());
    for (int e = lane; e < p.E; e += 32) total += Exponential(Widen(row[e]) - most);
    total = OfWarp(total, Sum());
  }
  T* to = static_cast<T*>(p.grad_logits) + t * p.E;
  for (int e = lane; e < p.E; e += 32) {
    const float v =
        of_all ? Exponential(Widen(row[e]) - most) / total * (grads[e] - dot) : grads[e];
    to[e] = Narrow<T>(v);
  }
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_moe_route_backward_cuda(const MoeRouteBackwardArgs* args,
                                                 AnyopCall* call) {
  using namespace anyop::cuda;
  if (args->T == 0 || args->E == 0) return kAnyopOk;
  const Gradient p = {static_cast<const float*>(args->grad_weights->data),
                      args->logits->data,
                      static_cast<const float*>(args->weights->data),
                      static_cast<const int32_t*>(args->ids->data),
                      args->grad_logits->data,
                      args->T,
                      static_cast<int>(args->E),
                      static_cast<int>(args->K),
                      anyop::ScoreOf(args->score),
                      args->renormalize != 0,
                      static_cast<float>(args->scale)};
  return WithFloat32Sums(AnyopDtypeOf(args->logits), [&](auto zero) {
    const Launch launch{dim3(static_cast<unsigned>(CeilDiv(p.tokens, kWarps))), dim3(kWarps * 32)};
    return launch.Run(call, Differentiate<decltype(zero)>, p);
  });
}
