/* SPDX-License-Identifier: Apache-2.0 */
/* HIP's functions of a wavefront of 64 lanes, by fibers, and CUDA's by anyop/hip/lanes.h. */
// Lanes are numbered in the wavefront. What a lane of the other half has cannot be known, for that
// half may be elsewhere: it reads as NaN, and its votes as set. Formulas are those of HIP 5.2.
#pragma once

#include <type_traits>

namespace cuda_on_cpu {
constexpr int kWave = 64;
inline int LaneOfWave() {
  return static_cast<int>((threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) %
                          kWave);
}
// The value of a lane of the wavefront, with the others of this half.
template <typename T>
T ExchangeInWave(T value, int from) {
  static_assert(std::is_arithmetic<T>::value && sizeof(T) >= 4, "HIP has no such function");
  const bool is_here = from >= 0 && from < kWave && from / 32 == LaneOfWave() / 32;
  value = Exchange(value, static_cast<unsigned>(from & 31));
  if (!is_here) std::memset(&value, 0xff, sizeof value);
  return value;
}
}  // namespace cuda_on_cpu

inline unsigned __lane_id() { return static_cast<unsigned>(cuda_on_cpu::LaneOfWave()); }
template <typename T>
T __shfl(T v, int lane, int width = cuda_on_cpu::kWave) {
  return cuda_on_cpu::ExchangeInWave(v, lane + (cuda_on_cpu::LaneOfWave() & ~(width - 1)));
}
template <typename T>
T __shfl_xor(T v, int mask, int width = cuda_on_cpu::kWave) {
  const int self = cuda_on_cpu::LaneOfWave(), from = self ^ mask;
  return cuda_on_cpu::ExchangeInWave(v, from >= ((self + width) & ~(width - 1)) ? self : from);
}
template <typename T>
T __shfl_up(T v, unsigned by, int width = cuda_on_cpu::kWave) {
  const int self = cuda_on_cpu::LaneOfWave(), from = self - static_cast<int>(by);
  return cuda_on_cpu::ExchangeInWave(v, from < (self & ~(width - 1)) ? self : from);
}
template <typename T>
T __shfl_down(T v, unsigned by, int width = cuda_on_cpu::kWave) {
  const int self = cuda_on_cpu::LaneOfWave(), from = self + static_cast<int>(by);
  const bool is_last = static_cast<int>((self & (width - 1)) + by) >= width;
  return cuda_on_cpu::ExchangeInWave(v, is_last ? self : from);
}
inline unsigned long long __ballot(int yes) {
  const int begin = cuda_on_cpu::LaneOfWave() / 32 * 32;
  const uint64_t here = cuda_on_cpu::VotesOfWarp(yes);
  return here << begin | ~(uint64_t{0xffffffff} << begin);
}
inline void __builtin_amdgcn_wave_barrier() { cuda_on_cpu::WaitForWarp(); }
#define __builtin_amdgcn_fence(order, scope)

#include "anyop/hip/lanes.h"
