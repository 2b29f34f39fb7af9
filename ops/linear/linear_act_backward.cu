// SPDX-License-Identifier: Apache-2.0
// Gradients of linear_act on CUDA: the gradient in front of the activation, rounded, which is that
// of the residual, with the sums of its columns in the same pass; two products of it by cuBLASLt.
#include "anyop/ops/linear_act_backward.h"
#include "gradient_products.h"

namespace anyop::cuda {
namespace {

int32_t MultiplyGradients(AnyopCall* call, const LinearActBackwardArgs& args, const void* grad) {
  const AnyopDtype dtype = AnyopDtypeOf(args.grad_out);
  const int64_t rows = args.rows, N = args.N, K = args.K;
  int32_t status = kAnyopOk;
  if (args.grad_x)
    status = Multiply(
        call, GradientOfRows(dtype, rows, N, K, grad, args.weight->data, args.grad_x->data));
  if (status || !args.grad_weight) return status;
  return Multiply(call,
                  GradientOfWeight(dtype, rows, N, K, grad, args.x->data, args.grad_weight->data));
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_linear_act_backward_cuda(const LinearActBackwardArgs* args,
                                                  AnyopCall* call) {
  using namespace anyop::cuda;
  Activation activation;
  if (const int32_t status = ReadActivation(call, args->activation.data, &activation))
    return status;
  const bool plain = activation == Activation::kNone;
  if (!plain && !args->pre) {
    return call->fail(call, kAnyopValueError,
                      "pre is missing, expected that of native_linear_act: all activations but "
                      "'none' need it");
  }
  AnyopTensor kept = *args->grad_out;
  const AnyopTensor* to = args->grad_residual;
  if (!to && !plain && (args->grad_x || args->grad_weight)) {
    const int64_t bytes = args->rows * args->N * kept.dtype_bits / 8;
    kept.data = call->workspace(call, bytes);
    if (!kept.data && bytes)
      return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
    to = &kept;
  }
  if (to || args->grad_bias) {
    const SlopeProduct slope = {args->grad_out, args->pre ? args->pre : args->grad_out, to,
                                args->grad_bias, activation};
    if (const int32_t status = MultiplyBySlope(call, slope)) return status;
  }
  return MultiplyGradients(call, *args, plain ? args->grad_out->data : to ? to->data : nullptr);
}
