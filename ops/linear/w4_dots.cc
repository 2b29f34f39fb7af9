// SPDX-License-Identifier: Apache-2.0
// Each thread takes some columns of the results. x is put once into the order in which weights are
// unpacked: of a block of 32 features the even ones, then the odd ones. Sums are float32, 8 of each
// row and column, those of a group of their own.
#include "w4_dots.h"

#include <algorithm>
#include <cstring>

#include "convert.h"

namespace anyop {
namespace {

using w4::Eight;
using w4::kBytes;
using w4::kFactors;

constexpr int kColumns = 2, kTogether = 4;  // of a block: columns, rows
constexpr int64_t kPanel = 16;              // columns whose results are rounded together

struct Work {
  const W4Product* product;
  const float* x;  // M rows of `blocks` times 32
  int64_t blocks;  // of a row of weight
};

inline float Total(const Eight& sums) {
  float lanes[8];
  std::memcpy(lanes, &sums, sizeof lanes);
  for (int width = 4; width; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  return lanes[0];
}

// A row of weight; its end in the order of a block, with zeros behind it, where x is 0.
struct Row {
  const uint8_t* blocks;
  uint32_t last[4];
  int64_t whole;  // blocks

  Row(const w4::Rows& w, int64_t n)
      : blocks(w.weight + n * (w.K / 2)), last(), whole(w.K / kFactors) {
    for (int64_t i = 0; i < w.K / 2 - whole * kBytes; ++i) {
      const uint32_t byte = blocks[whole * kBytes + i];
      last[i % 4] |= ((byte & 15) | (byte >> 4) << 16) << i / 4 * 4;
    }
  }
  const void* Block(int64_t b) const {
    return b < whole ? static_cast<const void*>(blocks + b * kBytes) : last;
  }
};

// Adds the products of a block of weight, features of x from `at` on.
template <int kRows>
inline __attribute__((always_inline)) void AddBlock(const float* const (&x)[kRows], int64_t at,
                                                    const void* from, float zero,
                                                    Eight (&sums)[kRows]) {
  const w4::Words four = *static_cast<const w4::StoredWords*>(from);
  Eight even[2], odd[2];
  w4::FactorsOf<0, 0>(four, zero, &even[0]), w4::FactorsOf<0, 1>(four, zero, &even[1]);
  w4::FactorsOf<1, 0>(four, zero, &odd[0]), w4::FactorsOf<1, 1>(four, zero, &odd[1]);
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m) {
    const w4::StoredEight* terms = reinterpret_cast<const w4::StoredEight*>(x[m] + at);
    sums[m] += terms[0] * even[0];
    sums[m] += terms[1] * even[1];
    sums[m] += terms[2] * odd[0];
    sums[m] += terms[3] * odd[1];
  }
}

// The groups [first, end) of a panel.
struct Groups {
  static constexpr int64_t kMost = 64;
  int64_t first, end;
  float scale[kPanel][kMost], zero[kPanel][kMost];
};

// Adds to the results of kRows rows from m on and of columns n and n + 1 of a panel from `panel`
// on, to[row][column], what these groups come to; the last column comes again where there is one.
template <int kRows>
inline __attribute__((always_inline)) void Block(const Work& work, const Groups& groups, int64_t m,
                                                 int64_t panel, int64_t n, float (*to)[kPanel],
                                                 bool alone) {
  const w4::Rows& w = work.product->weight;
  const float* x[kRows];
  for (int i = 0; i < kRows; ++i) x[i] = work.x + (m + i) * work.blocks * kFactors;
  const int64_t columns[kColumns] = {n, alone ? n : n + 1};
  const Row rows[kColumns] = {{w, columns[0]}, {w, columns[1]}};
  Eight totals[kColumns][kRows] = {};
  const int64_t a_group = w.group >= w.K ? work.blocks : w.group / kFactors;  // blocks
  for (int64_t g = groups.first; g < groups.end; ++g) {
    const int64_t end = std::min((g + 1) * a_group, work.blocks);
    const int64_t at[kColumns] = {columns[0] - panel, columns[1] - panel};
    const float zeros[kColumns] = {groups.zero[at[0]][g - groups.first],
                                   groups.zero[at[1]][g - groups.first]};
    Eight sums[kColumns][kRows] = {};
    for (int64_t b = g * a_group; b < end; ++b) {
#pragma GCC unroll 2
      for (int c = 0; c < kColumns; ++c)
        AddBlock(x, b * kFactors, rows[c].Block(b), zeros[c], sums[c]);
    }
    for (int c = 0; c < kColumns; ++c) {
      const float scale = groups.scale[at[c]][g - groups.first];
      for (int i = 0; i < kRows; ++i) totals[c][i] += sums[c][i] * scale;
    }
  }
  for (int c = 0; c < (alone ? 1 : kColumns); ++c)
    for (int i = 0; i < kRows; ++i) to[i][c] += Total(totals[c][i]);
}

// Adds what these groups come to, to columns [begin, end) of the results, no more than a panel, of
// all rows.
inline __attribute__((always_inline)) void AddGroups(const Work& work, const Groups& groups,
                                                     int64_t begin, int64_t end,
                                                     float (*sums)[kPanel]) {
  const int64_t M = work.product->M, pieces = (M + kTogether - 1) / kTogether;
  for (int64_t n = begin; n < end; n += kColumns) {
    for (int64_t i = 0; i < pieces; ++i) {
      const int64_t m = M * i / pieces, rows = M * (i + 1) / pieces - m;
      auto* to = reinterpret_cast<float (*)[kPanel]>(&sums[m][n - begin]);
      const bool alone = n + 1 == end;
      if (rows == 4)
        Block<4>(work, groups, m, begin, n, to, alone);
      else if (rows == 3)
        Block<3>(work, groups, m, begin, n, to, alone);
      else if (rows == 2)
        Block<2>(work, groups, m, begin, n, to, alone);
      else
        Block<1>(work, groups, m, begin, n, to, alone);
    }
  }
}

inline __attribute__((always_inline)) void SumPanel(const Work& work, int64_t begin, int64_t end,
                                                    float (*sums)[kPanel]) {
  const w4::Rows& w = work.product->weight;
  for (int64_t m = 0; m < work.product->M; ++m) std::fill(sums[m], sums[m] + kPanel, 0.0f);
  Groups groups;
  for (groups.first = 0; groups.first < GroupsOf(w); groups.first = groups.end) {
    groups.end = std::min(groups.first + Groups::kMost, GroupsOf(w));
    GatherScales(w, begin, end - begin, groups.first, groups.end, Groups::kMost, *groups.scale,
                 *groups.zero);
    AddGroups(work, groups, begin, end, sums);
  }
}

ANYOP_CPU_CLONES void FloatPanel(const Work* work, int64_t begin, int64_t end,
                                 float (*sums)[kPanel]) {
  SumPanel(*work, begin, end, sums);
}

// Row m of x in the order of unpacked weights, zeros behind its end.
void OrderRow(const W4Product& p, int64_t m, float* wide, float* to) {
  const int64_t K = p.weight.K;
  Widen(p.dtype, p.x, m * K, 1, K, wide);
  for (int64_t k = 0; k < K; k += kFactors)
    for (int i = 0; i < kFactors; ++i) {
      const int64_t from = k + 2 * (i % 16) + i / 16;
      to[k + i] = from < K ? wide[from] : 0;
    }
}

void FinishPanel(const W4Product& p, int64_t begin, int64_t end, float (*sums)[kPanel]) {
  float bias[kPanel] = {};
  if (p.bias) Widen(p.dtype, p.bias, begin, 1, end - begin, bias);
  for (int64_t m = 0; m < p.M; ++m) {
    for (int64_t n = 0; n < end - begin; ++n) sums[m][n] += bias[n];
    Narrow(sums[m], end - begin, p.dtype, p.out, m * p.weight.N + begin);
  }
}

}  // namespace

int32_t MultiplyW4Rows(AnyopCall* call, const W4Product& p) {
  const int64_t K = p.weight.K, N = p.weight.N;
  const int64_t blocks = (K + kFactors - 1) / kFactors, step = blocks * kFactors;
  auto* memory = static_cast<float*>(call->workspace(call, (p.M + 1) * step * 4 + 64));
  if (!memory) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  float* wide = memory + p.M * step;
  for (int64_t m = 0; m < p.M; ++m) OrderRow(p, m, wide, memory + m * step);
  const Work work = {&p, memory, blocks};
  const int64_t panels = (N + kPanel - 1) / kPanel;
  ParallelFor(call, panels, 65536 / (p.M * K * kPanel + 1) + 1, [&](int64_t first, int64_t last) {
    for (int64_t n = first * kPanel; n < std::min(last * kPanel, N); n += kPanel) {
      const int64_t end = std::min(n + kPanel, N);
      float sums[kMostW4Rows][kPanel];
      FloatPanel(&work, n, end, sums);
      FinishPanel(p, n, end, sums);
    }
  });
  return kAnyopOk;
}

}  // namespace anyop
