// SPDX-License-Identifier: Apache-2.0
// Memory that a thread keeps from one product to the next.
#pragma once

#include <cstddef>
#include <cstdlib>

namespace anyop {

// Of one thread. What is large is given back.
class KeptMemory {
 public:
  KeptMemory() = default;
  KeptMemory(const KeptMemory&) = delete;
  KeptMemory& operator=(const KeptMemory&) = delete;
  ~KeptMemory() { std::free(data_); }
  // nullptr when there is none.
  void* Get(size_t bytes) {
    if (bytes > size_) {
      std::free(data_);
      size_ = (bytes + 4095) / 4096 * 4096;
      data_ = std::aligned_alloc(4096, size_);
      if (!data_) size_ = 0;
    }
    return data_;
  }
  void Shrink() {
    if (size_ <= kKept) return;
    std::free(data_);
    data_ = nullptr, size_ = 0;
  }

 private:
  static constexpr size_t kKept = size_t{16} << 20;
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace anyop
