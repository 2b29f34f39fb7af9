// SPDX-License-Identifier: Apache-2.0
// Gradients of dense_gelu_dense on CUDA: the derivative of GELU by tanh and grad_bias1 end the
// product that goes back through the second layer, where cuBLASLt has that; else a second kernel
// reads its float32.
#include "anyop/ops/dense_gelu_dense_backward.h"
#include "gradient_products.h"

namespace anyop::cuda {
namespace {

// g = (grad_out weight2) * gelu'(gelu_in), rounded, and grad_bias1.
int32_t GoBack(AnyopCall* call, const DenseGeluDenseBackwardArgs& args, Activation gelu, void* g) {
  const AnyopDtype dtype = AnyopDtypeOf(args.grad_out);
  cublaslt::Product product =
      GradientOfRows(dtype, args.rows, args.N, args.H, args.grad_out->data, args.weight2->data, g);
  if (gelu == Activation::kGeluTanh && args.rows && args.N && args.H) {
    cublaslt::Product ended = product;
    ended.epilogue = cublaslt::kGeluTanhSlope;
    ended.aux = args.gelu_in->data;
    ended.aux_row_stride = args.H;
    bool taken;
    if (args.grad_bias1) {
      ended.epilogue |= cublaslt::kSumOfSlope;
      ended.bias = args.grad_bias1->data;
    }
    const int32_t status = MultiplyWithEpilogue(call, ended, &taken);
    if (status || taken) return status;
  }
  AnyopTensor wide = *args.gelu_in, to = *args.gelu_in;
  to.data = g;
  if (dtype != kAnyopFloat64) {
    const int64_t bytes = args.rows * args.H * int64_t{sizeof(float)};
    product.out_dtype = kAnyopFloat32;
    product.out = bytes ? call->workspace(call, bytes) : nullptr;
    if (bytes && !product.out)
      return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
    wide.dtype_code = 2;  // a float
    wide.dtype_bits = 32;
  }
  wide.data = product.out;
  if (const int32_t status = Multiply(call, product)) return status;
  return MultiplyBySlope(call, {&wide, args.gelu_in, &to, args.grad_bias1, gelu});
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_dense_gelu_dense_backward_cuda(const DenseGeluDenseBackwardArgs* args,
                                                        AnyopCall* call) {
  using namespace anyop::cuda;
  Activation gelu;
  if (const int32_t status = ReadGelu(call, args->approximate.data, &gelu)) return status;
  const AnyopDtype dtype = AnyopDtypeOf(args->grad_out);
  const int64_t rows = args->rows, N = args->N, K = args->K, H = args->H;
  const void *grad = args->grad_out->data, *hidden = args->hidden->data;
  int32_t status = kAnyopOk;
  if (args->grad_x || args->grad_weight1 || args->grad_bias1) {
    const int64_t bytes = rows * H * args->grad_out->dtype_bits / 8;
    void* g = bytes ? call->workspace(call, bytes) : nullptr;
    if (bytes && !g) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
    status = GoBack(call, *args, gelu, g);
    if (!status && args->grad_x)
      status = Multiply(
          call, GradientOfRows(dtype, rows, H, K, g, args->weight1->data, args->grad_x->data));
    if (!status && args->grad_weight1)
      status = Multiply(
          call, GradientOfWeight(dtype, rows, H, K, g, args->x->data, args->grad_weight1->data));
  }
  if (!status && args->grad_weight2)
    status =
        Multiply(call, GradientOfWeight(dtype, rows, N, H, grad, hidden, args->grad_weight2->data));
  if (status || !args->grad_bias2) return status;
  return SumColumns(call, args->grad_out, args->grad_bias2);
}
