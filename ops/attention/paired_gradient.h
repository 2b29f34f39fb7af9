// SPDX-License-Identifier: Apache-2.0
// The products of attention's gradient by pairs of bfloat16, where the CPU multiplies such.
//
// Keys and values of a group become panels once. Weights and slopes of a block of queries are sums
// of two numbers of bfloat16, each of which is multiplied: all are as exact as results of 16 bits
// ask for, and no product is larger than one by float32. Sums are float32.
#pragma once

#include <algorithm>

#include "../linear/dots.h"
#include "../linear/panels.h"
#include "paired_rows.h"
#include "softmax_block.h"

namespace anyop {

class PairedGradient : public PairedMemory {
 public:
  struct Sizes {
    int64_t rows, T, D, E;  // rows of a block of queries at most
  };
  // Rows of a block and the keys that it goes over; the first is a multiple of kPanelColumns.
  struct Block {
    int64_t rows, first, keys;
  };

  PairedGradient(const Sizes& sizes, uint16_t* memory) : PairedMemory(memory), s_(sizes) {
    const auto [rows, T, D, E] = s_;
    turned_keys_ = Take(CountPanels(D, T));
    turned_values_ = Take(CountPanels(E, T));
    keys_ = Take(CountPanels(T, D));
    clean_ = Take(T * D);
    high_ = Take(rows * T);
    low_ = Take(rows * T);
    seen_ = Take(CountPanels(rows, T));
    queries_ = Take(CountPanels(rows, std::max(D, E)));
  }

  // clean: what is not finite in keys must not meet slopes of 0.
  void SetGroup(const BFloat16Rows& k, const BFloat16Rows& v, bool clean) const {
    MakeTurnedPanels(k.data, k.step, s_.D, s_.T, turned_keys_);
    MakeTurnedPanels(v.data, v.step, s_.E, s_.T, turned_values_);
    const BFloat16Rows keys = clean ? CleanRows(k, s_.T, s_.D, clean_) : k;
    MakePanels(keys.data, keys.step, s_.T, s_.D, keys_);
  }

  // to[rows, keys] = q k^T, and grad v^T.
  void SetScores(const BFloat16Rows& q, const Block& b, float* to) const {
    AddTurned(q, turned_keys_, s_.D, b, to);
  }
  void SetWeightGradients(const BFloat16Rows& grad, const Block& b, float* to) const {
    AddTurned(grad, turned_values_, s_.E, b, to);
  }

  // What the next two multiply: weights or slopes [rows, keys].
  void Split(const float* scores, const Block& b) const {
    SplitBF16(scores, b.rows * b.keys, high_, low_);
  }
  // to[keys, width] += scores^T x[rows, width].
  void AddToKeys(const BFloat16Rows& x, int64_t width, const Block& b, float* to) const {
    MakePanels(x.data, x.step, b.rows, width, queries_);
    const int64_t step = PanelStep(b.rows);
    for (const uint16_t* part : {high_, low_}) {
      MakePanels(part, b.keys, b.rows, b.keys, seen_);
      for (int64_t t = 0; t < b.keys; t += kPanelColumns) {
        AddPanels({seen_ + t / kPanelColumns * step, 2, 2 * kPanelColumns}, queries_, step,
                  std::min(kPanelColumns, b.keys - t), width, (b.rows + 1) / 2 * 2, false,
                  to + (b.first + t) * width, width);
      }
    }
  }
  // to[rows, D] = scores k.
  void SetQueryGradients(const Block& b, float* to) const {
    for (const uint16_t* part : {high_, low_}) {
      AddPanels({part, b.keys, 2}, keys_ + b.first * kPanelColumns, PanelStep(s_.T), b.rows, s_.D,
                b.keys, part == high_, to, s_.D);
    }
  }

 private:
  void AddTurned(const BFloat16Rows& x, const uint16_t* panels, int64_t width, const Block& b,
                 float* to) const {
    const int64_t step = PanelStep(width);
    AddPanels({x.data, x.step, 2}, panels + b.first / kPanelColumns * step, step, b.rows, b.keys,
              width, true, to, b.keys);
  }

  Sizes s_;
  uint16_t *turned_keys_, *turned_values_, *keys_, *clean_;  // of the group
  uint16_t *high_, *low_, *seen_, *queries_;                 // of a block
};

}  // namespace anyop
