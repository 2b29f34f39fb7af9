// SPDX-License-Identifier: Apache-2.0
// The two products of attention's blocks by pairs of bfloat16, where the CPU multiplies such.
//
// Queries, keys and values are multiplied as they lie. Weights are sums of two numbers of bfloat16,
// each of which is multiplied, so that they are as exact as results of 16 bits ask for.
#pragma once

#include <algorithm>
#include <cstring>

#include "../linear/dots.h"
#include "../linear/panels.h"
#include "paired_rows.h"
#include "softmax_block.h"

namespace anyop {

class PairedBlock : public PairedMemory {
 public:
  struct Sizes {
    int64_t rows, keys, D, E;  // at most
    bool gathers;              // rows from pages, or to be cleaned
  };

  PairedBlock(const Sizes& sizes, uint16_t* memory) : PairedMemory(memory), s_(sizes) {
    const auto [rows, keys, D, E, gathers] = s_;
    queries_ = Take(rows * D);
    gathered_ = Take(gathers ? keys * std::max(D, E) : 0);
    key_panels_ = Take(CountPanels(D, keys));
    value_panels_ = Take(CountPanels(keys, E));
    high_ = Take(rows * keys);
    low_ = Take(rows * keys);
  }

  void SetQuery(int64_t row, const uint16_t* q) const {
    std::memcpy(queries_ + row * s_.D, q, static_cast<size_t>(s_.D) * sizeof *q);
  }

  // count rows of `length` numbers, where row_of(i) is.
  template <typename RowOf>
  BFloat16Rows Gather(int64_t count, int64_t length, const RowOf& row_of) const {
    const auto bytes = static_cast<size_t>(length) * sizeof(uint16_t);
    for (int64_t i = 0; i < count; ++i) std::memcpy(gathered_ + i * length, row_of(i), bytes);
    return Gathered(length);
  }
  // The same rows again.
  BFloat16Rows Gathered(int64_t length) const { return {gathered_, length}; }

  bool IsFinite(const BFloat16Rows& v, int64_t keys) const {
    bool finite = true;
    for (int64_t t = 0; t < keys; ++t) finite &= AllFiniteBF16(v.data + t * v.step, s_.E);
    return finite;
  }
  // Values without what is not finite, where rows are gathered.
  BFloat16Rows Clean(const BFloat16Rows& v, int64_t keys) const {
    return CleanRows(v, keys, s_.E, gathered_);
  }

  // scores[rows, keys] = q k^T.
  void SetScores(const BFloat16Rows& k, int64_t rows, int64_t keys, float* scores) const {
    MakeTurnedPanels(k.data, k.step, s_.D, keys, key_panels_);
    AddPanels({queries_, s_.D, 2}, key_panels_, PanelStep(s_.D), rows, keys, s_.D, true, scores,
              keys);
  }
  // out[rows, E] = or += weights[rows, keys] v.
  void AddValues(const float* weights, const BFloat16Rows& v, int64_t rows, int64_t keys,
                 bool first, float* out) const {
    MakePanels(v.data, v.step, keys, s_.E, value_panels_);
    SplitBF16(weights, rows * keys, high_, low_);
    for (const uint16_t* part : {high_, low_}) {
      AddPanels({part, keys, 2}, value_panels_, PanelStep(keys), rows, s_.E, keys,
                first && part == high_, out, s_.E);
    }
  }

 private:
  Sizes s_;
  uint16_t *queries_, *gathered_, *key_panels_, *value_panels_, *high_, *low_;
};

}  // namespace anyop
