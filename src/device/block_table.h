// SPDX-License-Identifier: Apache-2.0
// Blocks that are given out, by address: one probe of a table that is at most half full.
#pragma once

#include <cstdint>
#include <memory>

#include "block.h"

namespace anyop {

class BlockTable {
 public:
  // Room for one more, so that Insert cannot fail. May throw.
  void Reserve() {
    if (2 * (count_ + 1) > capacity_) Grow();
  }

  void Insert(Block* block) {
    size_t at = Home(block->begin);
    while (slots_[at]) at = Next(at);
    slots_[at] = block;
    ++count_;
  }

  Block* Find(const void* memory) const {
    if (!count_) return nullptr;
    for (size_t at = Home(memory); slots_[at]; at = Next(at))
      if (slots_[at]->begin == memory) return slots_[at];
    return nullptr;
  }

  // What lay there, nullptr when nothing did. Later entries move up: no marks are left behind.
  Block* Take(const void* memory) {
    if (!count_) return nullptr;
    size_t hole = Home(memory);
    while (slots_[hole] && slots_[hole]->begin != memory) hole = Next(hole);
    Block* const found = slots_[hole];
    if (!found) return nullptr;
    for (size_t at = Next(hole); slots_[at]; at = Next(at)) {
      const size_t home = Home(slots_[at]->begin);
      if (((at - home) & (capacity_ - 1)) < ((at - hole) & (capacity_ - 1))) continue;
      slots_[hole] = slots_[at];
      hole = at;
    }
    slots_[hole] = nullptr;
    --count_;
    return found;
  }

 private:
  size_t Home(const void* memory) const {
    const uint64_t key = reinterpret_cast<uintptr_t>(memory) / kUnit;
    return static_cast<size_t>(key * UINT64_C(0x9E3779B97F4A7C15) >> shift_);
  }
  size_t Next(size_t at) const { return (at + 1) & (capacity_ - 1); }

  void Grow() {
    const size_t old_capacity = capacity_, capacity = capacity_ ? 2 * capacity_ : 1024;
    auto slots = std::make_unique<Block*[]>(capacity);
    slots.swap(slots_);
    capacity_ = capacity;
    shift_ = 64 - __builtin_ctzll(capacity);
    count_ = 0;
    for (size_t i = 0; i < old_capacity; ++i)
      if (slots[i]) Insert(slots[i]);
  }

  std::unique_ptr<Block*[]> slots_;
  size_t capacity_ = 0, count_ = 0;
  int shift_ = 0;
};

}  // namespace anyop
