// SPDX-License-Identifier: Apache-2.0
// What attention's products by pairs of bfloat16 share (paired_block.h, paired_gradient.h): rows of
// bfloat16, and memory that is divided.
#pragma once

#include <cstdint>

namespace anyop {

struct BFloat16Rows {
  const uint16_t* data;
  int64_t step;
};

// `to` has the rows without what is not finite, which must not meet weights of 0.
inline BFloat16Rows CleanRows(const BFloat16Rows& x, int64_t count, int64_t length, uint16_t* to) {
  for (int64_t row = 0; row < count; ++row) {
    for (int64_t i = 0; i < length; ++i) {
      const uint16_t bits = x.data[row * x.step + i];
      to[row * length + i] = (bits & 0x7f80) != 0x7f80 ? bits : uint16_t{0};
    }
  }
  return {to, length};
}

// Divides memory, which may be nullptr to learn how much is needed.
class PairedMemory {
 public:
  explicit PairedMemory(uint16_t* memory) : memory_(memory) {}

  uint16_t* Take(int64_t count) {
    uint16_t* at = memory_ ? memory_ + used_ : nullptr;
    used_ += (count + 31) / 32 * 32;
    return at;
  }
  int64_t CountElements() const { return used_; }

 private:
  uint16_t* memory_;
  int64_t used_ = 0;
};

}  // namespace anyop
