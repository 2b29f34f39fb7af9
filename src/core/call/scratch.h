// SPDX-License-Identifier: Apache-2.0
// Scratch memory of one call on the CPU: a buffer kept by the thread, because fresh pages cost more
// than the work.
#pragma once

#include <cstdint>

namespace anyop {

class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch();

  // 64-byte aligned and uninitialised; nullptr when there is no memory, or bytes is negative.
  void* Take(int64_t bytes);

 private:
  struct Block;
  Block* blocks_ = nullptr;
};

}  // namespace anyop
