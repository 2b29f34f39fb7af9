// SPDX-License-Identifier: Apache-2.0
// A tensor of batch, channels and further sizes on the CPU, as blocks of memory that are cut into
// runs: of one channel, or of neighbouring channels where these come last.
#ifndef ANYOP_OPS_NORM_CHANNEL_RUNS_H_
#define ANYOP_OPS_NORM_CHANNEL_RUNS_H_

#include "channel_planes.h"

namespace anyop::cpu {

constexpr int64_t kJoined = 64;  // channels whose parts one unit joins

// Contiguous. S: elements of one channel that lie side by side; 1: the channels do. rows: such runs
// of each channel.
struct ChannelRuns {
  int64_t C, S, count, rows;

  ChannelRuns(int64_t N, int64_t C, int64_t S, bool last)
      : C(C), S(last ? 1 : S), count(N * C * S), rows(last ? N * S : N) {
    if (C == 1) this->S = count > 0 ? count : 1, rows = 1;
  }
  bool last() const { return S == 1; }
  int64_t blocks() const { return (count + kBlock - 1) / kBlock; }
  int64_t SizeOf(int64_t block) const {
    return count - block * kBlock < kBlock ? count - block * kBlock : kBlock;
  }
  // Calls run(at, n, c) for elements [at, at + n) of a block: of channel c, or of c, c + 1, ...
  template <typename Run>
  void Cut(int64_t block, Run run) const {
    const int64_t size = SizeOf(block), inner = last() ? C : S;
    int64_t row = block * kBlock / inner, within = block * kBlock % inner;
    for (int64_t n, at = 0; at < size; at += n, ++row, within = 0) {
      n = inner - within < size - at ? inner - within : size - at;
      run(at, n, last() ? within : row % C);
    }
  }

  // Sums and moments: units of one channel (a row of one n), or of all (some pixels).
  static constexpr int64_t kPixels = 128;
  int64_t parts() const { return last() ? (rows + kPixels - 1) / kPixels : rows; }
  int64_t units() const { return last() ? parts() : rows * C; }
  int64_t of_unit() const { return last() ? kPixels * C : S; }
  int64_t Behind(int64_t part) const {
    return (part + 1) * kPixels < rows ? (part + 1) * kPixels : rows;
  }
  // Maps: rows are cut, too.
  static constexpr int64_t kCut = 16 * kBlock;
  int64_t cuts() const { return (S + kCut - 1) / kCut; }
  int64_t pieces() const { return last() ? parts() : rows * C * cuts(); }
  int64_t of_piece() const { return last() || S < kCut ? of_unit() : kCut; }
  // Elements of each channel in a part.
  int64_t InPart(int64_t part) const { return last() ? Behind(part) - part * kPixels : S; }
  // Channels whose parts are joined: join(first, n).
  int64_t joins() const { return (C + kJoined - 1) / kJoined; }
  template <typename Join>
  void ForJoined(int64_t unit, Join join) const {
    const int64_t c = unit * kJoined;
    join(c, C - c < kJoined ? C - c : kJoined);
  }
};

// The eight bits from number `at` on.
inline unsigned BitsAt(const uint8_t* mask, int64_t at, bool more) {
  const unsigned low = mask[at >> 3] >> (at & 7);
  return at & 7 && more ? low | static_cast<unsigned>(mask[(at >> 3) + 1]) << (8 - (at & 7)) : low;
}
// to[i] = from[i] where bit `first` + i is 1, else 0.
template <typename Wide>
inline void Masked(int64_t n, const Wide* from, const uint8_t* mask, int64_t first, Wide* to) {
  for (int64_t i = 0; i < n; i += 8) {
    const int64_t left = n - i < 8 ? n - i : 8;
    const unsigned bits = BitsAt(mask, first + i, (first + i) % 8 + left > 8);
    if (left == 8) {
#pragma omp simd
      for (unsigned j = 0; j < 8; ++j) to[i + j] = bits >> j & 1 ? from[i + j] : 0;
    } else {
      for (unsigned j = 0; j < left; ++j) to[i + j] = bits >> j & 1 ? from[i + j] : 0;
    }
  }
}

inline uint8_t* MaskOf(const AnyopTensor* mask) {
  return mask ? static_cast<uint8_t*>(mask->data) : nullptr;
}

}  // namespace anyop::cpu

#endif  // ANYOP_OPS_NORM_CHANNEL_RUNS_H_
