// SPDX-License-Identifier: Apache-2.0
// moe_unpermute and moe_unpermute_backward on the CPU: threads take tokens.
#include "anyop/ops/moe_unpermute.h"

#include <cstring>

#include "anyop/ops/moe_unpermute_backward.h"
#include "token_sums.h"

namespace anyop {
namespace {

template <typename E>
void Differentiate(const MoeUnpermuteBackwardArgs& args, AnyopCall* call) {
  using Wide = typename cpu::WideOf<E>::Type;
  const int64_t N = args.N, K = args.K, H = args.H;
  const auto* inverse = static_cast<const int32_t*>(args.inverse->data);
  const auto* weights = args.weights ? static_cast<const float*>(args.weights->data) : nullptr;
  const auto* grad_out = static_cast<const E*>(args.grad_out->data);
  const auto* y = static_cast<const E*>(args.y->data);
  auto* grad_y = args.grad_y ? static_cast<E*>(args.grad_y->data) : nullptr;
  auto* grad_weights = args.grad_weights ? static_cast<float*>(args.grad_weights->data) : nullptr;
  if (grad_y && N * H) std::memset(grad_y, 0, static_cast<size_t>(N * H) * sizeof(E));
  ParallelFor(call, args.T, 16384 / (H * K + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const E* grad = grad_out + t * H;
      for (int64_t k = 0; k < K; ++k) {
        const int64_t at = inverse[t * K + k];
        const bool inside = at >= 0 && at < N;
        const Wide weight = weights ? weights[t * K + k] : 1;
        if (grad_y && inside)
          for (int64_t h = 0; h < H; ++h)
            cpu::Store(weight * cpu::Load<Wide>(grad[h]), grad_y + at * H + h);
        if (!grad_weights) continue;
        Wide sum = 0;
        for (int64_t h = 0; inside && h < H; ++h)
          sum += cpu::Load<Wide>(grad[h]) * cpu::Load<Wide>(y[at * H + h]);
        grad_weights[t * K + k] = static_cast<float>(sum);
      }
    }
  });
}

}  // namespace
}  // namespace anyop

extern "C" int32_t anyop_moe_unpermute_cpu(const MoeUnpermuteArgs* args, AnyopCall* call) {
  return anyop::SumTokens(call, args->y, static_cast<const int32_t*>(args->inverse->data),
                          args->weights ? static_cast<const float*>(args->weights->data) : nullptr,
                          args->N, args->T, args->K, args->H, args->out);
}

extern "C" int32_t anyop_moe_unpermute_backward_cpu(const MoeUnpermuteBackwardArgs* args,
                                                    AnyopCall* call) {
  anyop::WithElement(AnyopDtypeOf(args->y),
                     [&](auto zero) { anyop::Differentiate<decltype(zero)>(*args, call); });
  return kAnyopOk;
}
