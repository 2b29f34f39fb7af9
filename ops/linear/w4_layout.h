// SPDX-License-Identifier: Apache-2.0
// Where the 4 bits of a factor lie in weights of w4_pack, for CPU and CUDA.
//
// A row has K/2 bytes. Factors 32*b to 32*b+31 have the 16 bytes from 16*b on, four little-endian
// words: word t holds the factors 8*i + 2*t (bits 4*i on) and 8*i + 2*t + 1 (bits 4*i + 16 on), i =
// 0 to 3. So a word and a mask give the two neighbours that a thread of mma.sync multiplies. The K
// % 32 factors at the end lie two in a byte, the first in its low bits.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define ANYOP_W4_BOTH __host__ __device__
#else
#define ANYOP_W4_BOTH
#endif

namespace anyop::w4 {

constexpr int kFactors = 32;  // of a block
constexpr int kBytes = 16;

// The factor of a block whose 4 bits are the low (high: the high) ones of a byte of it.
ANYOP_W4_BOTH constexpr int FactorOf(int byte, bool high) {
  return 16 * (byte % 2) + 8 * high + 2 * (byte / 4) + byte % 4 / 2;
}

// The factor of the end of a row.
ANYOP_W4_BOTH constexpr int EndFactorOf(int byte, bool high) { return 2 * byte + high; }

// Zero point n of a row of them, 8 in a word.
ANYOP_W4_BOTH inline int ZeroOf(const int32_t* row, int64_t step, int64_t n) {
  return static_cast<int>(static_cast<uint32_t>(row[n / 8 * step]) >> 4 * (n % 8) & 15);
}

constexpr int kMiddle = 8;  // the zero point where none are given

}  // namespace anyop::w4
