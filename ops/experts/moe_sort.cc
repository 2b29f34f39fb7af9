// SPDX-License-Identifier: Apache-2.0
// moe_sort on the CPU: a counting sort by one thread.
#include "anyop/ops/moe_sort.h"

#include "slots.h"

extern "C" int32_t anyop_moe_sort_cpu(const MoeSortArgs* args, AnyopCall*) {
  const int64_t slots = args->T * args->K;
  auto* order = static_cast<int32_t*>(args->order->data);
  std::fill_n(order, slots, -1);
  anyop::SortSlots({args->ids, args->expert_map, args->experts}, slots, args->experts, 1, order,
                   static_cast<int32_t*>(args->inverse->data),
                   static_cast<int32_t*>(args->offsets->data));
  return kAnyopOk;
}
