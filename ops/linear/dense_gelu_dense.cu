// SPDX-License-Identifier: Apache-2.0
// dense_gelu_dense and native_dense_gelu_dense on CUDA: two products with their ends.
#include "anyop/ops/dense_gelu_dense.h"
#include "anyop/ops/native_dense_gelu_dense.h"
#include "ended_product.h"

namespace {

template <typename Args>
int32_t Run(const Args* args, AnyopCall* call, void* gelu_in, void* hidden) {
  using namespace anyop::cuda;
  const AnyopDtype dtype = AnyopDtypeOf(args->out);
  EndedProduct first = {dtype,
                        args->rows,
                        args->H,
                        args->K,
                        args->x->data,
                        args->weight1->data,
                        args->bias1->data,
                        nullptr,
                        hidden,
                        gelu_in,
                        Activation::kNone};
  if (const int32_t status = ReadGelu(call, args->approximate.data, &first.activation))
    return status;
  const EndedProduct second = {dtype,
                               args->rows,
                               args->N,
                               args->H,
                               hidden,
                               args->weight2->data,
                               args->bias2->data,
                               nullptr,
                               args->out->data,
                               nullptr,
                               Activation::kNone};
  const int32_t status = Multiply(call, first);
  return status ? status : Multiply(call, second);
}

}  // namespace

extern "C" int32_t anyop_dense_gelu_dense_cuda(const DenseGeluDenseArgs* args, AnyopCall* call) {
  const int64_t bytes = args->rows * args->H * args->out->dtype_bits / 8;
  void* hidden = bytes ? call->workspace(call, bytes) : nullptr;
  if (bytes && !hidden) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  return Run(args, call, nullptr, hidden);
}
extern "C" int32_t anyop_native_dense_gelu_dense_cuda(const NativeDenseGeluDenseArgs* args,
                                                      AnyopCall* call) {
  return Run(args, call, args->gelu_in->data, args->hidden->data);
}
