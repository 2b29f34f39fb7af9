// SPDX-License-Identifier: Apache-2.0
// Rows times rows on the CPU, one sum at a time.
#include "hopper/ops/product.h"

#include "anyop/cpu.h"

extern "C" int32_t hopper_product_cpu(const ProductArgs* args, AnyopCall*) {
  using anyop::cpu::bfloat16, anyop::cpu::Load, anyop::cpu::Store;
  const auto* x = static_cast<const bfloat16*>(args->x->data);
  const auto* weight = static_cast<const bfloat16*>(args->weight->data);
  auto* out = static_cast<bfloat16*>(args->out->data);
  for (int64_t m = 0; m < args->M; ++m)
    for (int64_t n = 0; n < args->N; ++n) {
      float sum = 0;
      for (int64_t k = 0; k < args->K; ++k)
        sum += Load<float>(x[m * args->K + k]) * Load<float>(weight[n * args->K + k]);
      Store(sum, out + m * args->N + n);
    }
  return kAnyopOk;
}
