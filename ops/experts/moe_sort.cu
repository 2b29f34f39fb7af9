// SPDX-License-Identifier: Apache-2.0
// moe_sort on CUDA: see sort_cuda.h.
#include "anyop/ops/moe_sort.h"
#include "sort_cuda.h"

extern "C" int32_t anyop_moe_sort_cuda(const MoeSortArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  const int64_t slots = args->T * args->K;
  if (int32_t status = CheckSlots(call, slots)) return status;
  SlotSort p = {};
  p.ids = static_cast<const int32_t*>(args->ids->data);
  p.expert_map = args->expert_map ? static_cast<const int32_t*>(args->expert_map->data) : nullptr;
  p.slots = p.room = static_cast<int>(slots);
  p.known = static_cast<int>(args->expert_map ? args->G : args->experts);
  p.experts = static_cast<int>(args->experts);
  p.block = 1, p.rest = -1;
  p.order = static_cast<int32_t*>(args->order->data);
  p.inverse = static_cast<int32_t*>(args->inverse->data);
  p.offsets = static_cast<int32_t*>(args->offsets->data);
  return RunSlotSort(call, p);
}
