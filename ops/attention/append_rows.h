// SPDX-License-Identifier: Apache-2.0
// Rows of new tokens to the places of a cache that slots name. All slots are looked at before
// anything is written. A thread has some tokens.
#pragma once

#include <cstdio>
#include <cstring>
#include <vector>

#include "../linear/convert.h"
#include "../quant/quantize_row.h"
#include "attention_problem.h"

namespace anyop {

inline int64_t SlotOf(const AnyopTensor& slots, int64_t t) {
  return slots.dtype_bits == 64 ? static_cast<const int64_t*>(slots.data)[t]
                                : static_cast<const int32_t*>(slots.data)[t];
}

// -1, or a place of one of the N pages.
inline int32_t CheckSlots(AnyopCall* call, const AnyopTensor& slots, int64_t N, int64_t P) {
  const int64_t places = CountPlaces(N, P);
  for (int64_t t = 0; t < slots.shape[0]; ++t) {
    const int64_t slot = SlotOf(slots, t);
    if (slot >= -1 && slot < places) continue;
    char text[128];
    std::snprintf(text, sizeof text, "slots[%lld] is %lld, expected -1 <= slot < %lld",
                  static_cast<long long>(t), static_cast<long long>(slot),
                  static_cast<long long>(places));
    return call->fail(call, kAnyopIndexError, text);
  }
  return kAnyopOk;
}

// write(t, slot, scratch) for tokens that have a slot; a token has so many elements, and scratch
// is for `width` of them.
template <typename Write>
void ForSlots(AnyopCall* call, const AnyopTensor& slots, int64_t elements, int64_t width,
              const Write& write) {
  constexpr int64_t kGrain = 32768;  // elements worth a thread
  ParallelFor(call, slots.shape[0], kGrain / (elements + 1) + 1, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(static_cast<size_t>(width));
    for (int64_t t = begin; t < end; ++t) {
      const int64_t slot = SlotOf(slots, t);
      if (slot >= 0) write(t, slot, scratch.data());
    }
  });
}

// Tokens (T, G, D), or (T, D), as they are written to a cache (N, P, G, D), or to some columns of
// one of (N, P, W).
class AppendedRows {
 public:
  // scale: what they are divided by, one for each head, or nullptr.
  AppendedRows(const AnyopTensor& cache, const AnyopTensor& rows, const AnyopTensor* scale,
               int64_t first_column = 0)
      : cache_(cache),
        rows_(rows),
        scale_(scale),
        P_(cache.shape[1]),
        heads_(rows.ndim == 3 ? rows.shape[1] : 1),
        length_(rows.shape[rows.ndim - 1]),
        first_(first_column) {}

  void Write(int64_t t, int64_t slot, float* scratch) const {
    const AnyopDtype from = AnyopDtypeOf(&rows_), to = AnyopDtypeOf(&cache_);
    for (int64_t g = 0; g < heads_; ++g) {
      const int64_t source = t * rows_.strides[0] + g * rows_.strides[1];
      const int64_t target = slot / P_ * cache_.strides[0] + slot % P_ * cache_.strides[1] +
                             g * cache_.strides[2] + first_;
      if (from == to && !scale_) {
        const int64_t bytes = rows_.dtype_bits / 8;
        std::memcpy(static_cast<char*>(cache_.data) + target * bytes,
                    static_cast<const char*>(rows_.data) + source * bytes,
                    static_cast<size_t>(length_ * bytes));
        continue;
      }
      Widen(from, rows_.data, source, 1, length_, scratch);
      if (scale_) {
        const float scale = static_cast<const float*>(scale_->data)[g * scale_->strides[0]];
        const float factor = cpu::FactorOf(scale);
        for (int64_t d = 0; d < length_; ++d) scratch[d] *= factor;
      }
      if (to == kAnyopFloat8E4M3FN) {
        cpu::StoreE4M3(scratch, length_, static_cast<uint8_t*>(cache_.data) + target);
      } else {
        Narrow(scratch, length_, to, cache_.data, target);
      }
    }
  }

 private:
  const AnyopTensor &cache_, &rows_;
  const AnyopTensor* scale_;
  int64_t P_, heads_, length_, first_;
};

}  // namespace anyop
