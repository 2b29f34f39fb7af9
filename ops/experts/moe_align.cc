// SPDX-License-Identifier: Apache-2.0
// moe_align on the CPU: a counting sort by one thread.
#include "anyop/ops/moe_align.h"

#include "slots.h"

extern "C" int32_t anyop_moe_align_cpu(const MoeAlignArgs* args, AnyopCall* call) {
  const int64_t slots = args->T * args->K, experts = args->experts, block = args->block_size;
  auto* offsets = static_cast<int32_t*>(call->workspace(call, (experts + 1) * 4));
  if (!offsets) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  auto* sorted = static_cast<int32_t*>(args->sorted_ids->data);
  std::fill_n(sorted, args->sorted_ids->shape[0], static_cast<int32_t>(slots));
  anyop::SortSlots({args->ids, nullptr, experts}, slots, experts, block, sorted, nullptr, offsets);
  auto* of_block = static_cast<int32_t*>(args->block_experts->data);
  std::fill_n(of_block, args->block_experts->shape[0], -1);
  for (int64_t e = 0; e < experts; ++e)
    std::fill(of_block + offsets[e] / block, of_block + offsets[e + 1] / block,
              static_cast<int32_t>(e));
  static_cast<int32_t*>(args->padded_count->data)[0] = offsets[experts];
  return kAnyopOk;
}
