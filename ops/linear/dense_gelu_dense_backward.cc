// SPDX-License-Identifier: Apache-2.0
// Gradients of dense_gelu_dense on the CPU: the gradient in front of gelu is finished on the sums
// of its product, block by block, and rounded once.
#include "anyop/ops/dense_gelu_dense_backward.h"

#include "activation_slope.h"
#include "gemm_blocks.h"

namespace anyop {
namespace {

int32_t NoMemory(AnyopCall* call) {
  return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
}

// The gradient in front of gelu to `to`, unless that is nullptr, and its sums to grad_bias1.
int32_t BeforeGelu(const DenseGeluDenseBackwardArgs* args, AnyopCall* call,
                   cpu::Activation activation, char* to) {
  const AnyopDtype dtype = AnyopDtypeOf(args->grad_out);
  const int64_t H = args->H, item = SizeOf(dtype);
  const cpu::ColumnSums sums(call, dtype, args->rows, args->grad_bias1 ? H : 0);
  if (!sums.has_memory()) return NoMemory(call);
  cpu::SlopeWork work = {};
  work.dtype = dtype;
  work.grad_dtype = dtype == kAnyopFloat64 ? kAnyopFloat64 : kAnyopFloat32;
  work.bias = args->grad_bias1;
  work.N = H;
  work.activation = activation;
  work.sums = &sums;
  const GemmProblem problem = GradientOfRows(dtype, args->rows, args->N, H, args->grad_out->data,
                                             args->weight2->data, nullptr);
  const int32_t status =
      GemmInBlocks(call, problem, [&](int64_t first, int64_t rows, const void* found) {
        work.grad = found;
        work.pre = static_cast<const char*>(args->gelu_in->data) + first * H * item;
        work.to = to ? to + first * H * item : nullptr;
        work.rows = rows;
        work.first = first;
        sums.RunParts(call, &work, rows, H, cpu::RunSlope);
      });
  if (status == kAnyopOk && args->grad_bias1) sums.Write(call, 0, args->grad_bias1);
  return status;
}

int32_t SumRows(const DenseGeluDenseBackwardArgs* args, AnyopCall* call) {
  cpu::SlopeWork sum = {};
  sum.grad = args->grad_out->data;
  sum.grad_dtype = sum.dtype = AnyopDtypeOf(args->grad_out);
  sum.bias = args->grad_bias2;
  sum.rows = args->rows, sum.N = args->N;
  return cpu::ActivationSlope(call, sum);
}

int32_t Run(const DenseGeluDenseBackwardArgs* args, AnyopCall* call, cpu::Activation activation) {
  const AnyopDtype dtype = AnyopDtypeOf(args->grad_out);
  const int64_t M = args->rows, N = args->N, H = args->H, K = args->K;
  int32_t status = args->grad_bias2 ? SumRows(args, call) : kAnyopOk;
  if (status == kAnyopOk && args->grad_weight2)
    status = Gemm(call, GradientOfWeight(dtype, M, N, H, args->grad_out->data, args->hidden->data,
                                         args->grad_weight2->data));
  char* g = nullptr;
  if (args->grad_x || args->grad_weight1) {
    g = static_cast<char*>(call->workspace(call, M * H * SizeOf(dtype)));
    if (!g && M > 0 && H > 0) return NoMemory(call);
  }
  if (status == kAnyopOk && (g || args->grad_bias1)) status = BeforeGelu(args, call, activation, g);
  if (status == kAnyopOk && args->grad_x)
    status = Gemm(call, GradientOfRows(dtype, M, H, K, g, args->weight1->data, args->grad_x->data));
  if (status == kAnyopOk && args->grad_weight1)
    status =
        Gemm(call, GradientOfWeight(dtype, M, H, K, g, args->x->data, args->grad_weight1->data));
  return status;
}

}  // namespace
}  // namespace anyop

extern "C" int32_t anyop_dense_gelu_dense_backward_cpu(const DenseGeluDenseBackwardArgs* args,
                                                       AnyopCall* call) {
  using namespace anyop;
  return cpu::WithGelu(
      call, args->approximate.data, [&] { return Run(args, call, cpu::Activation::kGelu); },
      [&] { return Run(args, call, cpu::Activation::kGeluTanh); });
}
