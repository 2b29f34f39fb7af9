// SPDX-License-Identifier: Apache-2.0
// Gradients of linear_act on the CPU: the gradient in front of the activation, rounded, which is
// that of the residual; two products of it; the sums of its columns.
#include "anyop/ops/linear_act_backward.h"

#include "activation_slope.h"
#include "gemm_blocks.h"

extern "C" int32_t anyop_linear_act_backward_cpu(const LinearActBackwardArgs* args,
                                                 AnyopCall* call) {
  using namespace anyop;
  const AnyopDtype dtype = AnyopDtypeOf(args->grad_out);
  cpu::SlopeWork slope = {};
  slope.grad = args->grad_out->data;
  slope.pre = args->pre ? args->pre->data : nullptr;
  slope.grad_dtype = slope.dtype = dtype;
  slope.bias = args->grad_bias;
  slope.rows = args->rows, slope.N = args->N;
  if (const int32_t status = cpu::ReadActivation(call, args->activation.data, &slope.activation))
    return status;
  const bool plain = slope.activation == cpu::Activation::kNone;
  if (!plain && !args->pre) {
    return call->fail(call, kAnyopValueError,
                      "pre is missing, expected that of native_linear_act: all activations but "
                      "'none' need it");
  }
  const void* grad = args->grad_out->data;
  if (args->grad_residual) {
    slope.to = static_cast<char*>(args->grad_residual->data);
  } else if (!plain && (args->grad_x || args->grad_weight)) {
    const int64_t bytes = args->rows * args->N * SizeOf(slope.dtype);
    slope.to = static_cast<char*>(call->workspace(call, bytes));
    if (!slope.to && bytes)
      return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  }
  int32_t status = slope.to || slope.bias ? cpu::ActivationSlope(call, slope) : kAnyopOk;
  if (!plain) grad = slope.to;
  const int64_t M = args->rows, N = args->N, K = args->K;
  if (status == kAnyopOk && args->grad_x)
    status =
        Gemm(call, GradientOfRows(dtype, M, N, K, grad, args->weight->data, args->grad_x->data));
  if (status == kAnyopOk && args->grad_weight)
    status =
        Gemm(call, GradientOfWeight(dtype, M, N, K, grad, args->x->data, args->grad_weight->data));
  return status;
}
