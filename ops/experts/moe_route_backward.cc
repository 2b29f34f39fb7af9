// SPDX-License-Identifier: Apache-2.0
// moe_route_backward on the CPU: threads take tokens; a row of gradients is summed in float32.
#include "anyop/ops/moe_route_backward.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "anyop/cpu.h"
#include "element_types.h"
#include "route_forms.h"

namespace anyop::cpu {
namespace {

// Of one token, whose gradients begin as zeros.
void Differentiate(const MoeRouteBackwardArgs& args, Score score, int64_t t, const float* logits,
                   float* grad_logits) {
  const int64_t E = args.E, K = args.K;
  const auto* g = static_cast<const float*>(args.grad_weights->data) + t * K;
  const auto* w = static_cast<const float*>(args.weights->data) + t * K;
  const auto* ids = static_cast<const int32_t*>(args.ids->data) + t * K;
  float dot = 0, sum = 0;
  for (int64_t j = 0; j < K; ++j) dot += g[j] * w[j], sum += w[j];
  const bool of_all = score == Score::kSoftmax && !args.renormalize;
  const bool of_each = score == Score::kSigmoid && !args.renormalize;
  const float mean = of_each ? 0 : sum == 0 ? 0 : dot / sum;
  for (int64_t j = 0; j < K; ++j) {
    if (ids[j] < 0 || ids[j] >= E) continue;
    const float rest = score == Score::kSigmoid ? 1 / (1 + std::exp(logits[ids[j]])) : 1;
    grad_logits[ids[j]] +=
        of_all ? static_cast<float>(args.scale) * g[j] : w[j] * (g[j] - mean) * rest;
  }
  if (!of_all) return;
  float most = -std::numeric_limits<float>::infinity(), total = 0;
  for (int64_t e = 0; e < E; ++e) most = std::fmax(most, logits[e]);
  for (int64_t e = 0; e < E; ++e) total += std::exp(logits[e] - most);
  for (int64_t e = 0; e < E; ++e)
    grad_logits[e] = std::exp(logits[e] - most) / total * (grad_logits[e] - dot);
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_moe_route_backward_cpu(const MoeRouteBackwardArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  const anyop::Score score = anyop::ScoreOf(args->score);
  const int64_t E = args->E;
  anyop::WithElement(AnyopDtypeOf(args->logits), [&](auto zero) {
    using T = decltype(zero);
    const auto* logits = static_cast<const T*>(args->logits->data);
    auto* out = static_cast<T*>(args->grad_logits->data);
    anyop::ParallelFor(call, args->T, 4096 / (E + 1) + 1, [&](int64_t begin, int64_t end) {
      float row[1024], grads[1024];
      for (int64_t t = begin; t < end; ++t) {
        for (int64_t e = 0; e < E; ++e) row[e] = Load<float>(logits[t * E + e]);
        std::fill_n(grads, E, 0.0f);
        Differentiate(*args, score, t, row, grads);
        for (int64_t e = 0; e < E; ++e) Store(grads[e], out + t * E + e);
      }
    });
  });
  return kAnyopOk;
}
