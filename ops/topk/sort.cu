// SPDX-License-Identifier: Apache-2.0
// sort of rows on CUDA: see anyop/cuda/sort.h.
#include "anyop/ops/sort.h"
#include "row_order_cuda.h"

extern "C" int32_t anyop_sort_cuda(const SortArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  return WithPlace(AnyopDtypeOf(args->x), args->descending, [&](const auto& place) {
    return SortFirst(call, args->x, args->rows, args->D, args->D, place, args->values,
                     args->indices);
  });
}
