// SPDX-License-Identifier: Apache-2.0
// bias_gelu as an operator: the arguments are checked and the result is there already.
#include "moved/ops/bias_gelu.h"

#include "bias_gelu_rows.h"

int32_t moved_bias_gelu_cpu(const BiasGeluArgs* args, AnyopCall*) {
  const auto *x = (const float*)args->x->data, *bias = (const float*)args->bias->data;
  BiasGeluRows(x, bias, (float*)args->out->data, args->rows, args->D);
  return kAnyopOk;
}
