// SPDX-License-Identifier: Apache-2.0
// Blocks go back to the thread when the call ends, where one of up to 64 MiB is kept for the next
// call.
#include "call/scratch.h"

#include <pthread.h>

#include <cstdlib>

namespace anyop {

struct alignas(64) Scratch::Block {
  Block* next;
  int64_t bytes;
};

namespace {

constexpr auto kNoKey = static_cast<pthread_key_t>(-1);
constexpr int64_t kKeptBytes = int64_t{64} << 20;

// At most one free block a thread; nullptr while a call has it.
struct Kept {
  void* block;
  bool is_freed;  // at the thread's end
};
// No destructor: where there is no memory to note it, glibc would end the process.
thread_local Kept kept = {};

void Free(void* of_thread) {
  auto* mine = static_cast<Kept*>(of_thread);
  std::free(mine->block);
  *mine = {};
}

bool IsFreed() {
  if (kept.is_freed) return true;
  static const pthread_key_t key = [] {
    pthread_key_t made;
    return pthread_key_create(&made, Free) == 0 ? made : kNoKey;
  }();
  kept.is_freed = key != kNoKey && pthread_setspecific(key, &kept) == 0;
  return kept.is_freed;
}

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
    const bool better =
        blocks_->bytes <= kKeptBytes && (!old || old->bytes < blocks_->bytes) && IsFreed();
    std::free(better ? old : blocks_);
    if (better) kept.block = blocks_;
    blocks_ = next;
  }
}

}  // namespace anyop
