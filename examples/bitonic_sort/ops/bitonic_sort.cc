// SPDX-License-Identifier: Apache-2.0
// bitonic_sort on the CPU: each row is packed into integers on the stack, sorted, and unpacked.
//
// Not a network: std::sort of the same integers gives the same bits. An element is read twice.
#include "sorting/ops/bitonic_sort.h"

#include <algorithm>

#include "anyop/cpu/rows.h"
#include "sort_key.h"

namespace anyop::sorting {
namespace {

template <typename Raw>
void SortRow(const Raw* x, int64_t D, const Order<Raw>& order, Raw* values, int64_t* indices) {
  Packed<Raw> row[kMaxD];
  for (int64_t d = 0; d < D; ++d) row[d] = Pack<Raw>(KeyOf(x[d], order), d);
  std::sort(row, row + D);
  for (int64_t d = 0; d < D; ++d) {
    indices[d] = IndexIn<Raw>(row[d]);
    values[d] = x[indices[d]];
  }
}

template <typename Raw>
int32_t Run(const BitonicSortArgs& args, AnyopCall* call, const Order<Raw>& order) {
  const cpu::Rows x(args.x), values(args.values), indices(args.indices);
  const int64_t D = args.D, grain = cpu::kGrain / (16 * D) + 1;  // some 16 steps an element
  ParallelFor(call, args.rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      SortRow(reinterpret_cast<const Raw*>(x[row]), D, order, reinterpret_cast<Raw*>(values[row]),
              reinterpret_cast<int64_t*>(indices[row]));
    }
  });
  return kAnyopOk;
}

}  // namespace
}  // namespace anyop::sorting

extern "C" int32_t sorting_bitonic_sort_cpu(const BitonicSortArgs* args, AnyopCall* call) {
  using namespace anyop::sorting;
  if (args->D == 0 || args->rows == 0) return kAnyopOk;
  return WithOrder(AnyopDtypeOf(args->x), args->descending,
                   [&](const auto& order) { return Run(*args, call, order); });
}
