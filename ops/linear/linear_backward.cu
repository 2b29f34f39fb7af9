// SPDX-License-Identifier: Apache-2.0
// Gradients of linear on CUDA: two products by cuBLASLt, and the sums of the columns of grad_out.
#include "anyop/ops/linear_backward.h"
#include "gradient_products.h"

namespace {

int32_t Run(const LinearBackwardArgs& args, AnyopCall* call, bool tf32) {
  using namespace anyop::cuda;
  const AnyopDtype dtype = AnyopDtypeOf(args.grad_out);
  const void* grad = args.grad_out->data;
  const auto multiply = [&](anyop::cublaslt::Product product) {
    product.tf32 = tf32;
    return Multiply(call, product);
  };
  int32_t status = kAnyopOk;
  if (args.grad_x)
    status = multiply(GradientOfRows(dtype, args.rows, args.N, args.K, grad, args.weight->data,
                                     args.grad_x->data));
  if (!status && args.grad_weight)
    status = multiply(GradientOfWeight(dtype, args.rows, args.N, args.K, grad, args.x->data,
                                       args.grad_weight->data));
  return status || !args.grad_bias ? status : SumColumns(call, args.grad_out, args.grad_bias);
}

}  // namespace

extern "C" int32_t anyop_linear_backward_cuda(const LinearBackwardArgs* args, AnyopCall* call) {
  return Run(*args, call, false);
}
extern "C" int32_t anyop_linear_backward_cuda_tf32(const LinearBackwardArgs* args,
                                                   AnyopCall* call) {
  return Run(*args, call, true);
}
