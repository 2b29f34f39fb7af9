// SPDX-License-Identifier: Apache-2.0
// multi_tensor_l2norm on the CPU: one read an element.
#include "anyop/ops/multi_tensor_l2norm.h"

#include "cpu_norms.h"

extern "C" int32_t anyop_multi_tensor_l2norm_cpu(const MultiTensorL2normArgs* args,
                                                 AnyopCall* call) {
  return anyop::cpu::WriteNorms(call, args->x, args->scale, false, args->total, args->each);
}
