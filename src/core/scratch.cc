// SPDX-License-Identifier: Apache-2.0
// Blocks go back to the thread when the call ends, where one of up to 64 MiB is kept for the next
// call.
#include "scratch.h"

#include <cstdlib>

namespace anyop {

struct alignas(64) Scratch::Block {
  Block* next;
  int64_t bytes;
};

namespace {

constexpr int64_t kKeptBytes = int64_t{64} << 20;

// At most one free block a thread; nullptr while a call has it.
struct Kept {
  void* block = nullptr;
  ~Kept() { std::free(block); }
};
thread_local Kept kept;

}  // namespace

void* Scratch::Take(int64_t bytes) {
  if (bytes < 0 || bytes > INT64_MAX - 128) return nullptr;
  const int64_t rounded = (bytes + 63) / 64 * 64;
  auto* block = static_cast<Block*>(kept.block);
  kept.block = nullptr;
  if (!block || block->bytes < rounded) {
    std::free(block);
    block =
        static_cast<Block*>(std::aligned_alloc(64, sizeof(Block) + static_cast<size_t>(rounded)));
    if (!block) return nullptr;
    block->bytes = rounded;
  }
  block->next = blocks_;
  blocks_ = block;
  return block + 1;
}

Scratch::~Scratch() {
  while (blocks_) {
    Block* next = blocks_->next;
    auto* old = static_cast<Block*>(kept.block);
    const bool better = blocks_->bytes <= kKeptBytes && (!old || old->bytes < blocks_->bytes);
    std::free(better ? old : blocks_);
    if (better) kept.block = blocks_;
    blocks_ = next;
  }
}

}  // namespace anyop
