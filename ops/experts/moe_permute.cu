// SPDX-License-Identifier: Apache-2.0
// moe_permute and its gradient on CUDA: see token_rows_cuda.h.
#include "anyop/ops/moe_permute.h"
#include "anyop/ops/moe_permute_backward.h"
#include "token_rows_cuda.h"

extern "C" int32_t anyop_moe_permute_cuda(const MoePermuteArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  return GatherTokens(call, args->x->data, static_cast<const int32_t*>(args->order->data), args->N,
                      args->T * args->top_k, static_cast<int>(args->top_k),
                      args->H * (args->x->dtype_bits / 8), args->out->data);
}

extern "C" int32_t anyop_moe_permute_backward_cuda(const MoePermuteBackwardArgs* args,
                                                   AnyopCall* call) {
  using namespace anyop::cuda;
  if (args->T == 0 || args->H == 0) return kAnyopOk;
  const int64_t slots = args->T * args->top_k;
  auto* inverse = static_cast<int32_t*>(call->workspace(call, slots * 4));
  if (!inverse) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  if (int32_t status = Check(call, cudaMemsetAsync(inverse, 255, slots * 4, StreamOf(call)),
                             "filling its workspace"))
    return status;
  const Launch launch{dim3(static_cast<unsigned>(CeilDiv(args->N, 256))), dim3(256)};
  if (int32_t status =
          args->N == 0 ? kAnyopOk
                       : launch.Run(call, Invert, static_cast<const int32_t*>(args->order->data),
                                    args->N, slots, inverse))
    return status;
  return WithFloating(AnyopDtypeOf(args->grad_out), [&](auto zero) {
    using T = decltype(zero);
    return SumTokens<T, T>(call, {args->grad_out->data, inverse, nullptr, args->grad_x->data,
                                  args->N, args->T, args->top_k, args->H});
  });
}
