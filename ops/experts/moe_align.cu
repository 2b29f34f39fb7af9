// SPDX-License-Identifier: Apache-2.0
// moe_align on CUDA: see sort_cuda.h.
#include "anyop/ops/moe_align.h"
#include "sort_cuda.h"

extern "C" int32_t anyop_moe_align_cuda(const MoeAlignArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  if (int32_t status = CheckSlots(call, args->sorted_ids->shape[0])) return status;
  SlotSort p = {};
  p.ids = static_cast<const int32_t*>(args->ids->data);
  p.slots = p.rest = static_cast<int>(args->T * args->K);
  p.known = p.experts = static_cast<int>(args->experts);
  p.block = static_cast<int>(args->block_size);
  p.order = static_cast<int32_t*>(args->sorted_ids->data);
  p.room = static_cast<int>(args->sorted_ids->shape[0]);
  p.block_experts = static_cast<int32_t*>(args->block_experts->data);
  p.blocks = static_cast<int>(args->block_experts->shape[0]);
  p.padded_count = static_cast<int32_t*>(args->padded_count->data);
  return RunSlotSort(call, p);
}
