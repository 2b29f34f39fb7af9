// SPDX-License-Identifier: Apache-2.0
// The workspace of many products one behind the other on the CPU, such as those of experts: a call
// keeps what each of them takes until it ends, so that it would grow with their number.
#pragma once

#include "anyop/kernel.h"

namespace anyop {

class ReusedWorkspace {
 public:
  explicit ReusedWorkspace(AnyopCall* call) : inner_{*call, call, {}, {}, 0} {
    inner_.call.workspace = Take;
  }
  ReusedWorkspace(const ReusedWorkspace&) = delete;

  // For the next product; what the one before took is taken again.
  AnyopCall* Next() {
    inner_.used = 0;
    return &inner_.call;
  }

 private:
  static constexpr int kBlocks = 4;  // more are not kept
  struct Inner {
    AnyopCall call;  // the first, so that it is found from its address
    AnyopCall* outer;
    void* memory[kBlocks];
    int64_t bytes[kBlocks];
    int used;
  };

  // Powers of two: what is outgrown is less in all than what is kept.
  static void* Take(AnyopCall* call, int64_t bytes) {
    Inner& self = *reinterpret_cast<Inner*>(call);
    if (self.used == kBlocks) return self.outer->workspace(self.outer, bytes);
    const int block = self.used++;
    if (bytes > self.bytes[block] || !self.memory[block]) {
      int64_t rounded = 4096;
      while (rounded < bytes && rounded < INT64_MAX / 2) rounded *= 2;
      if (rounded < bytes) rounded = bytes;
      self.memory[block] = self.outer->workspace(self.outer, rounded);
      self.bytes[block] = self.memory[block] ? rounded : 0;
    }
    return self.memory[block];
  }

  Inner inner_;
};

}  // namespace anyop
