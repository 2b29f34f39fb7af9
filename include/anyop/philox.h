/* SPDX-License-Identifier: Apache-2.0 */
/* Philox 4x32-10: random words that a counter and a key name, the same on every device. */
#ifndef ANYOP_PHILOX_H_
#define ANYOP_PHILOX_H_

#include <stdint.h>

#ifdef __CUDACC__
#define ANYOP_PHILOX_FUNCTION __host__ __device__ inline
#else
#define ANYOP_PHILOX_FUNCTION inline
#endif

namespace anyop {

// Four words: a counter, or what is drawn for it.
struct PhiloxWords {
  uint32_t at[4];
};

// Salmon, Moraes, Dror and Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.3.
ANYOP_PHILOX_FUNCTION PhiloxWords Philox(PhiloxWords counter, uint64_t key) {
  uint32_t low = static_cast<uint32_t>(key), high = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter.at[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * counter.at[2];
    counter = {{static_cast<uint32_t>(b >> 32) ^ counter.at[1] ^ low, static_cast<uint32_t>(b),
                static_cast<uint32_t>(a >> 32) ^ counter.at[3] ^ high, static_cast<uint32_t>(a)}};
    low += 0x9E3779B9u;
    high += 0xBB67AE85u;
  }
  return counter;
}
// The words of a place (an index) in the stream of a seed, behind an offset.
ANYOP_PHILOX_FUNCTION PhiloxWords Philox(uint64_t seed, uint64_t offset, uint64_t place) {
  return Philox({{static_cast<uint32_t>(place), static_cast<uint32_t>(place >> 32),
                  static_cast<uint32_t>(offset), static_cast<uint32_t>(offset >> 32)}},
                seed);
}

// A word as a number strictly between 0 and 1, one of 2^23; both ends are equally far away.
ANYOP_PHILOX_FUNCTION float PhiloxUniform(uint32_t word) {
  return (static_cast<float>(word >> 9) + 0.5f) * 0x1p-23f;
}

}  // namespace anyop

#endif  // ANYOP_PHILOX_H_
