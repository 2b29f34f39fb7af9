// SPDX-License-Identifier: Apache-2.0
// Lists that are walked together, one of them changed.
#include "odd/ops/scale_all.h"

template <typename T>
static void Run(const ScaleAllArgs& a, double more) {
  for (int64_t n = 0; n < a.xs.count; ++n) {
    const AnyopTensor& x = a.xs.data[n];
    int64_t count = 1;
    for (int d = 0; d < x.ndim; ++d) count *= x.shape[d];
    for (int64_t i = 0; i < count; ++i) {
      static_cast<T*>(x.data)[i] +=
          static_cast<T>(a.alpha * static_cast<const T*>(a.ys.data[n].data)[i] + more);
    }
  }
}

int32_t odd_scale_all_cpu(const ScaleAllArgs* args, AnyopCall*) {
  const double more = static_cast<double>(args->pads.data[0] + 10 * args->pads.data[1] +
                                          args->notes.count + args->seed.value);
  if (args->xs.count == 0) return kAnyopOk;
  AnyopDtypeOf(&args->xs.data[0]) == kAnyopFloat32 ? Run<float>(*args, more)
                                                   : Run<double>(*args, more);
  return kAnyopOk;
}
