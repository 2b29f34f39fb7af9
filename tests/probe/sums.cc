// SPDX-License-Identifier: Apache-2.0
// Lists of tensors with gaps, several results of which one is made only when wanted, and every
// status.
#include "probe/ops/sums.h"

static double Sum(const AnyopTensor& x) {
  double sum = 0;
  for (int64_t n = 0; n < x.shape[0]; ++n)
    sum += static_cast<const double*>(x.data)[n * x.strides[0]];
  return sum;
}

int32_t probe_sums_cpu(const SumsArgs* args, AnyopCall* call) {
  if (args->fail) {
    return call->fail(call, static_cast<int32_t>(args->fail), "failed as it was told to");
  }
  double total = args->y ? Sum(*args->y) : 0;
  for (int64_t l = 0; l < args->xs.count; ++l) {
    const AnyopTensor& x = args->xs.data[l];
    const bool given = x.ndim >= 0;
    if (given) total += Sum(x);
    if (args->count) static_cast<int64_t*>(args->count->data)[l] = given ? x.shape[0] : -1;
  }
  *static_cast<double*>(args->total->data) = total;
  return kAnyopOk;
}
