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
#include "softmax_block.h"

namespace anyop {

inline bool IsFiniteBF16(uint16_t bits) { return (bits & 0x7f80) != 0x7f80; }

class PairedGradient {
 public:
  struct Sizes {
    int64_t rows, T, D, E;  // rows of a block of queries at most
  };
  // Rows of bfloat16.
  struct Rows {
    const uint16_t* data;
    int64_t step;
  };
  // Rows of a block and the keys that it goes over; the first is a multiple of kPanelColumns.
  struct Block {
    int64_t rows, first, keys;
  };

  // Divides memory, which may be nullptr to learn how much is needed.
  PairedGradient(const Sizes& sizes, uint16_t* memory) : s_(sizes), memory_(memory) {
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
  int64_t CountElements() const { return used_; }

  // clean: what is not finite in keys must not meet slopes of 0.
  void SetGroup(const Rows& k, const Rows& v, bool clean) const {
    MakeTurnedPanels(k.data, k.step, s_.D, s_.T, turned_keys_);
    MakeTurnedPanels(v.data, v.step, s_.E, s_.T, turned_values_);
    if (!clean) return MakePanels(k.data, k.step, s_.T, s_.D, keys_);
    for (int64_t t = 0; t < s_.T; ++t) {
      for (int64_t d = 0; d < s_.D; ++d) {
        const uint16_t bits = k.data[t * k.step + d];
        clean_[t * s_.D + d] = IsFiniteBF16(bits) ? bits : uint16_t{0};
      }
    }
    MakePanels(clean_, s_.D, s_.T, s_.D, keys_);
  }

  // to[rows, keys] = q k^T, and grad v^T.
  void SetScores(const Rows& q, const Block& b, float* to) const {
    AddTurned(q, turned_keys_, s_.D, b, to);
  }
  void SetWeightGradients(const Rows& grad, const Block& b, float* to) const {
    AddTurned(grad, turned_values_, s_.E, b, to);
  }

  // What the next two multiply: weights or slopes [rows, keys].
  void Split(const float* scores, const Block& b) const {
    SplitBF16(scores, b.rows * b.keys, high_, low_);
  }
  // to[keys, width] += scores^T x[rows, width].
  void AddToKeys(const Rows& x, int64_t width, const Block& b, float* to) const {
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
  uint16_t* Take(int64_t count) {
    uint16_t* at = memory_ ? memory_ + used_ : nullptr;
    used_ += (count + 31) / 32 * 32;
    return at;
  }

  void AddTurned(const Rows& x, const uint16_t* panels, int64_t width, const Block& b,
                 float* to) const {
    const int64_t step = PanelStep(width);
    AddPanels({x.data, x.step, 2}, panels + b.first / kPanelColumns * step, step, b.rows, b.keys,
              width, true, to, b.keys);
  }

  Sizes s_;
  uint16_t* memory_;
  int64_t used_ = 0;
  uint16_t *turned_keys_, *turned_values_, *keys_, *clean_;  // of the group
  uint16_t *high_, *low_, *seen_, *queries_;                 // of a block
};

}  // namespace anyop
