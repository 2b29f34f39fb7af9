// SPDX-License-Identifier: Apache-2.0
// dense_gelu_dense and native_dense_gelu_dense on the CPU: gelu is applied to the first product's
// sums, block by block; the second product takes what it gave, rounded.
#include "anyop/ops/dense_gelu_dense.h"

#include "anyop/ops/native_dense_gelu_dense.h"
#include "finished_sums.h"

namespace anyop::cpu {
namespace {

template <typename Args>
int32_t RunDense(const Args* args, AnyopCall* call, const AnyopTensor* gelu_in,
                 const AnyopTensor* hidden) {
  const AnyopDtype dtype = AnyopDtypeOf(args->out);
  const int64_t M = args->rows, N = args->N, H = args->H;
  FinishedSums work = {nullptr, hidden, gelu_in, H, Activation::kNone};
  const auto choose = [&](Activation activation) {
    work.activation = activation;
    return int32_t{kAnyopOk};
  };
  if (const int32_t status = WithGelu(
          call, args->approximate.data, [&] { return choose(Activation::kGelu); },
          [&] { return choose(Activation::kGeluTanh); }))
    return status;
  AnyopTensor scratch = *args->out;
  int64_t shape[2] = {M, H}, strides[2] = {H, 1};
  if (!hidden) {
    scratch.data = call->workspace(call, M * H * SizeOf(dtype));
    if (!scratch.data && M > 0 && H > 0)
      return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
    scratch.ndim = 2, scratch.shape = shape, scratch.strides = strides;
    work.out = &scratch;
  }
  GemmProblem first = RowsByRows(dtype, M, H, args->K, args->x->data, args->weight1->data);
  first.bias = args->bias1->data;
  if (const int32_t status = FinishedProduct(call, first, work)) return status;
  GemmProblem second = RowsByRows(dtype, M, N, H, work.out->data, args->weight2->data);
  second.bias = args->bias2->data;
  second.out = args->out->data;
  return Gemm(call, second);
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_dense_gelu_dense_cpu(const DenseGeluDenseArgs* args, AnyopCall* call) {
  return anyop::cpu::RunDense(args, call, nullptr, nullptr);
}
extern "C" int32_t anyop_native_dense_gelu_dense_cpu(const NativeDenseGeluDenseArgs* args,
                                                     AnyopCall* call) {
  return anyop::cpu::RunDense(args, call, args->gelu_in, args->hidden);
}
