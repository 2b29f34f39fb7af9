// SPDX-License-Identifier: Apache-2.0
// A row of FlashMLA's cache in 656 bytes (latent_row.h), as CUDA kernels read and write it.
#pragma once

#include "anyop/cuda.h"
#include "anyop/cuda/mma.h"

namespace anyop::cuda {

constexpr int kLatentBytes = 656, kLatentScalesAt = 512, kLatentKeyAt = 528;
constexpr int kLatentGroup = 128;  // numbers of a scale

// The scale of numbers 128 * group on.
__device__ inline float ReadLatentScale(const uint8_t* row, int group) {
  const uint8_t* at = row + kLatentScalesAt + 4 * group;
  return __uint_as_float(uint32_t{at[0]} | uint32_t{at[1]} << 8 | uint32_t{at[2]} << 16 |
                         uint32_t{at[3]} << 24);
}
// So many words from an address, at once where that is a multiple of their bytes.
template <int kWords>
__device__ void ReadWords(const uint8_t* from, bool aligned, uint32_t (&words)[kWords]) {
  if (aligned) {
    const auto* at = reinterpret_cast<const Vector<uint32_t, kWords>*>(from);
    const Vector<uint32_t, kWords> found = *at;
#pragma unroll
    for (int w = 0; w < kWords; ++w) words[w] = found.at[w];
    return;
  }
#pragma unroll
  for (int w = 0; w < kWords; ++w)
    words[w] = uint32_t{from[4 * w]} | uint32_t{from[4 * w + 1]} << 8 |
               uint32_t{from[4 * w + 2]} << 16 | uint32_t{from[4 * w + 3]} << 24;
}
// Numbers 8 * piece on, of 576, before they are scaled. aligned: rows are multiples of 16 bytes.
__device__ inline void ReadLatentPiece(const uint8_t* row, int piece, bool aligned,
                                       float (&numbers)[8]) {
  if (piece >= kLatentScalesAt / 8) {
    uint32_t words[4];
    ReadWords(row + kLatentKeyAt + (piece - kLatentScalesAt / 8) * 16, aligned, words);
#pragma unroll
    for (int w = 0; w < 4; ++w)
      numbers[2 * w] = __uint_as_float(words[w] << 16),
                  numbers[2 * w + 1] = __uint_as_float(words[w] & 0xffff0000u);
    return;
  }
  uint32_t words[2];
  ReadWords(row + 8 * piece, aligned, words);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t two = WidenTwo<Operand::kE4M3>(words[i / 2] >> 16 * (i % 2) & 0xffff);
    numbers[2 * i] = WidenLow(__half(), two), numbers[2 * i + 1] = WidenHigh(__half(), two);
  }
}

}  // namespace anyop::cuda
