// SPDX-License-Identifier: Apache-2.0
// linear_act and native_linear_act on CUDA; ended_product.cu does all.
#include "anyop/ops/linear_act.h"
#include "anyop/ops/native_linear_act.h"
#include "ended_product.h"

namespace {

template <typename Args>
int32_t Run(const Args* args, AnyopCall* call, void* pre) {
  using namespace anyop::cuda;
  EndedProduct product = {AnyopDtypeOf(args->out),
                          args->rows,
                          args->N,
                          args->K,
                          args->x->data,
                          args->weight->data,
                          args->bias ? args->bias->data : nullptr,
                          args->residual,
                          args->out->data,
                          pre,
                          Activation::kNone};
  const int32_t status = ReadActivation(call, args->activation.data, &product.activation);
  return status ? status : Multiply(call, product);
}

}  // namespace

extern "C" int32_t anyop_linear_act_cuda(const LinearActArgs* args, AnyopCall* call) {
  return Run(args, call, nullptr);
}
extern "C" int32_t anyop_native_linear_act_cuda(const NativeLinearActArgs* args, AnyopCall* call) {
  return Run(args, call, args->pre ? args->pre->data : nullptr);
}
