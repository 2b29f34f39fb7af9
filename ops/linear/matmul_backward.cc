// SPDX-License-Identifier: Apache-2.0
// Gradients of matmul: two batched matrix products, summed over the leading sizes in which a matrix
// was broadcast; gemm.cc divides them over the threads.
#include "anyop/ops/matmul_backward.h"

#include "anyop/cpu/walk.h"
#include "gemm.h"

namespace anyop {
namespace {

using cpu::kMaxRank;

// The leading sizes of grad_out, those that the result has and those that are summed over, with the
// strides of both factors.
struct Leading {
  int32_t batch_dims = 0, sum_dims = 0;
  int64_t batch_shape[kMaxRank], sum_shape[kMaxRank];
  int64_t batch_strides[2][kMaxRank], sum_strides[2][kMaxRank];

  Leading(const AnyopTensor& a, const AnyopTensor& b, const AnyopTensor& full,
          const AnyopTensor& result) {
    for (int32_t d = 0; d < full.ndim - 2; ++d) {
      const int32_t own = d - (full.ndim - result.ndim);  // the same size in the result
      const bool kept = own >= 0 && result.shape[own] == full.shape[d];
      const int32_t at = kept ? batch_dims++ : sum_dims++;
      (kept ? batch_shape : sum_shape)[at] = full.shape[d];
      (kept ? batch_strides : sum_strides)[0][at] = a.strides[d];
      (kept ? batch_strides : sum_strides)[1][at] = b.strides[d];
    }
  }

  GemmSide Side(const AnyopTensor& tensor, int which, bool transposed) const {
    const int64_t* strides = tensor.strides + tensor.ndim - 2;
    return {tensor.data, strides[transposed ? 1 : 0], strides[transposed ? 0 : 1],
            batch_strides[which], sum_strides[which]};
  }
};

// result = a b, or with one of them transposed, summed where the result has no size of its own.
int32_t Multiply(AnyopCall* call, const AnyopTensor& a, bool transpose_a, const AnyopTensor& b,
                 bool transpose_b, const AnyopTensor& full, const AnyopTensor& result) {
  const Leading leading(a, b, full, result);
  GemmProblem problem = {};
  problem.fixed_tiles = true;
  problem.dtype = AnyopDtypeOf(&result);
  problem.M = result.shape[result.ndim - 2];
  problem.N = result.shape[result.ndim - 1];
  problem.K = a.shape[a.ndim - (transpose_a ? 2 : 1)];
  problem.batch_dims = leading.batch_dims;
  problem.batch_shape = leading.batch_shape;
  problem.sum_dims = leading.sum_dims;
  problem.sum_shape = leading.sum_shape;
  problem.a = leading.Side(a, 0, transpose_a);
  problem.b = leading.Side(b, 1, transpose_b);
  problem.out = result.data;
  return Gemm(call, problem);
}

}  // namespace
}  // namespace anyop

extern "C" int32_t anyop_matmul_backward_cpu(const MatmulBackwardArgs* args, AnyopCall* call) {
  using anyop::Multiply;
  const AnyopTensor &grad = *args->grad_out, &a = *args->a, &b = *args->b;
  int32_t status = kAnyopOk;
  if (args->grad_a) status = Multiply(call, grad, false, b, true, grad, *args->grad_a);
  if (status == kAnyopOk && args->grad_b) {
    status = Multiply(call, a, true, grad, false, grad, *args->grad_b);
  }
  return status;
}
