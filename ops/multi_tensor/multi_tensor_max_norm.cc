// SPDX-License-Identifier: Apache-2.0
// multi_tensor_max_norm on the CPU: one read an element.
#include "anyop/ops/multi_tensor_max_norm.h"

#include "cpu_norms.h"

extern "C" int32_t anyop_multi_tensor_max_norm_cpu(const MultiTensorMaxNormArgs* args,
                                                   AnyopCall* call) {
  return anyop::cpu::WriteNorms(call, args->x, args->scale, true, args->total, args->each);
}
