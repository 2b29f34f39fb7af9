// SPDX-License-Identifier: Apache-2.0
// Memory that lives as long as one call: a few KiB inside the object, the heap only behind that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace anyop {

class Arena {
 public:
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() {
    while (chunks_) {
      Chunk* next = chunks_->next;
      std::free(chunks_);
      chunks_ = next;
    }
  }

  // Uninitialised room for count objects, 16-byte aligned. Throws std::bad_alloc.
  template <typename T>
  T* Take(int64_t count) {
    uint64_t bytes;
    if (__builtin_mul_overflow(static_cast<uint64_t>(count), sizeof(T), &bytes))
      throw std::bad_alloc();
    if (bytes <= sizeof inline_ - used_) {
      void* at = inline_ + used_;
      used_ += (bytes + 15) & ~uint64_t{15};
      if (used_ > sizeof inline_) used_ = sizeof inline_;
      return static_cast<T*>(at);
    }
    return static_cast<T*>(TakeFromHeap(bytes));
  }

 private:
  struct alignas(16) Chunk {
    Chunk* next;
  };

  void* TakeFromHeap(uint64_t bytes) {
    if (bytes > SIZE_MAX - sizeof(Chunk)) throw std::bad_alloc();
    auto* chunk = static_cast<Chunk*>(std::malloc(sizeof(Chunk) + bytes));
    if (!chunk) throw std::bad_alloc();
    chunk->next = chunks_;
    chunks_ = chunk;
    return chunk + 1;
  }

  size_t used_ = 0;
  Chunk* chunks_ = nullptr;
  alignas(16) char inline_[3072];
};

}  // namespace anyop
