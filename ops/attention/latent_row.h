// SPDX-License-Identifier: Apache-2.0
// A row of FlashMLA's cache in 656 bytes: 512 latent numbers in float8_e4m3fn, one float32 scale
// for each 128 of them, and the 64 numbers of the rotated key in bfloat16.
#pragma once

#include <cstring>

#include "../linear/byte_floats.h"
#include "../linear/convert.h"

namespace anyop {

struct LatentRow {
  static constexpr int64_t kLatent = 512, kGroup = 128, kGroups = kLatent / kGroup, kKey = 64;
  // Where these begin, in bytes. No alignment is needed.
  static constexpr int64_t kScalesAt = kLatent, kKeyAt = kScalesAt + kGroups * 4;
  static constexpr int64_t kNumbers = kLatent + kKey;

  // All of its numbers.
  static void Read(const uint8_t* row, float* to) {
    float scales[kGroups];
    std::memcpy(scales, row + kScalesAt, sizeof scales);
    for (int64_t g = 0; g < kGroups; ++g) {
      const int64_t at = g * kGroup;
      cpu::WidenBytes(kAnyopFloat8E4M3FN, row + at, kGroup, scales[g], to + at);
    }
    uint16_t key[kKey];
    std::memcpy(key, row + kKeyAt, sizeof key);
    Widen(kAnyopBFloat16, key, 0, 1, kKey, to + kLatent);
  }
};

}  // namespace anyop
