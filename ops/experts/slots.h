// SPDX-License-Identifier: Apache-2.0
// Sorts slots by their experts on the CPU, for moe_sort, moe_align and fused_moe.
#pragma once

#include <algorithm>
#include <cstdint>

#include "anyop/kernel.h"

namespace anyop {

// The expert of a slot, or -1.
class SlotExperts {
 public:
  SlotExperts(const AnyopTensor* ids, const AnyopTensor* expert_map, int64_t experts)
      : ids_(static_cast<const int32_t*>(ids->data)),
        map_(expert_map ? static_cast<const int32_t*>(expert_map->data) : nullptr),
        known_(expert_map ? expert_map->shape[0] : experts),
        experts_(experts) {}

  int64_t operator[](int64_t slot) const {
    int64_t id = ids_[slot];
    if (id < 0 || id >= known_) return -1;
    if (map_) id = map_[id];
    return id < experts_ ? id : -1;
  }

 private:
  const int32_t *ids_, *map_;
  int64_t known_, experts_;
};

// Writes order (the rest is left as it is), offsets (experts + 1), and inverse where it is wanted.
// The part of each expert begins at a multiple of block.
inline void SortSlots(const SlotExperts& of, int64_t slots, int64_t experts, int64_t block,
                      int32_t* order, int32_t* inverse, int32_t* offsets) {
  std::fill_n(offsets, experts + 1, 0);
  for (int64_t s = 0; s < slots; ++s)
    if (of[s] >= 0) ++offsets[of[s] + 1];
  for (int64_t e = 0; e < experts; ++e)
    offsets[e + 1] =
        static_cast<int32_t>(offsets[e] + (offsets[e + 1] + block - 1) / block * block);
  for (int64_t s = 0; s < slots; ++s) {  // offsets move up to the next expert's
    const int64_t e = of[s];
    if (inverse) inverse[s] = e >= 0 ? offsets[e] : -1;
    if (e >= 0) order[offsets[e]++] = static_cast<int32_t>(s);
  }
  // The ends become the beginnings of the next.
  int32_t begin = 0;
  for (int64_t e = 0; e < experts; ++e) {
    const int32_t end = static_cast<int32_t>((offsets[e] + block - 1) / block * block);
    offsets[e] = begin;
    begin = end;
  }
}

}  // namespace anyop
