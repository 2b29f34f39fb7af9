// SPDX-License-Identifier: Apache-2.0
// Philox 4x32-10: random words by their place in a stream, the same on every processor. Salmon et
// al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
#ifndef ANYOP_PHILOX_H_
#define ANYOP_PHILOX_H_

#include <stdint.h>

#if defined(__CUDACC__) || defined(__HIPCC__)
#define ANYOP_PHILOX_BOTH __host__ __device__
#else
#define ANYOP_PHILOX_BOTH
#endif

namespace anyop {

struct PhiloxWords {
  uint32_t a, b, c, d;

  // Word i % 4.
  ANYOP_PHILOX_BOTH uint32_t operator[](int64_t i) const {
    return i & 2 ? (i & 1 ? d : c) : (i & 1 ? b : a);
  }
};

// The four words at a counter of 128 bits, of the stream that a key of 64 bits names.
ANYOP_PHILOX_BOTH inline PhiloxWords Philox(uint64_t key, uint64_t low, uint64_t high) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  PhiloxWords w = {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
                   static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t x = uint64_t{0xD2511F53u} * w.a, y = uint64_t{0xCD9E8D57u} * w.c;
    w = {static_cast<uint32_t>(y >> 32) ^ w.b ^ k0, static_cast<uint32_t>(y),
         static_cast<uint32_t>(x >> 32) ^ w.d ^ k1, static_cast<uint32_t>(x)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return w;
}

}  // namespace anyop

#endif  // ANYOP_PHILOX_H_
