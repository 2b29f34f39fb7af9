// SPDX-License-Identifier: Apache-2.0
// Writes rows of keys and values to the places of a cache that slots name. All slots are looked at
// before anything is written. A thread has some tokens.
#include "anyop/ops/append_kv.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "../linear/convert.h"
#include "../quant/quantize_row.h"

namespace anyop {
namespace {

constexpr int64_t kGrain = 32768;  // elements worth a thread

int64_t SlotOf(const AnyopTensor& slots, int64_t t) {
  return slots.dtype_bits == 64 ? static_cast<const int64_t*>(slots.data)[t]
                                : static_cast<const int32_t*>(slots.data)[t];
}

// One of the two caches.
class Half {
 public:
  Half(const AnyopTensor& cache, const AnyopTensor& rows, const AnyopTensor* scale)
      : cache_(cache), rows_(rows), scale_(scale), P_(cache.shape[1]), length_(cache.shape[3]) {}

  void Write(int64_t t, int64_t slot, float* scratch) const {
    const AnyopDtype from = AnyopDtypeOf(&rows_), to = AnyopDtypeOf(&cache_);
    for (int64_t g = 0; g < cache_.shape[2]; ++g) {
      const int64_t source = t * rows_.strides[0] + g * rows_.strides[1];
      const int64_t target =
          slot / P_ * cache_.strides[0] + slot % P_ * cache_.strides[1] + g * cache_.strides[2];
      if (from == to && !scale_) {
        const int64_t bytes = rows_.dtype_bits / 8;
        std::memcpy(static_cast<char*>(cache_.data) + target * bytes,
                    static_cast<const char*>(rows_.data) + source * bytes,
                    static_cast<size_t>(length_ * bytes));
        continue;
      }
      Widen(from, rows_.data, source, 1, length_, scratch);
      if (scale_) {
        const float factor = FactorOf(g);
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
  // As every operator that quantises takes a scale: ../quant/quantize_row.h.
  float FactorOf(int64_t g) const {
    const float scale = static_cast<const float*>(scale_->data)[g * scale_->strides[0]];
    return cpu::Min(cpu::Max(1 / scale, -cpu::kGreatestFactor), cpu::kGreatestFactor);
  }

  const AnyopTensor &cache_, &rows_;
  const AnyopTensor* scale_;
  int64_t P_, length_;
};

int32_t Append(const AppendKvArgs& args, AnyopCall* call) {
  const int64_t places = args.N * args.P;
  for (int64_t t = 0; t < args.T; ++t) {
    const int64_t slot = SlotOf(*args.slots, t);
    if (slot >= -1 && slot < places) continue;
    char text[128];
    std::snprintf(text, sizeof text, "slots[%lld] is %lld, expected -1 <= slot < %lld",
                  static_cast<long long>(t), static_cast<long long>(slot),
                  static_cast<long long>(places));
    return call->fail(call, kAnyopIndexError, text);
  }
  const Half keys(*args.k_cache, *args.k, args.k_scale);
  const Half values(*args.v_cache, *args.v, args.v_scale);
  const int64_t elements = args.G * (args.D + args.E) + 1;
  ParallelFor(call, args.T, kGrain / elements + 1, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(static_cast<size_t>(std::max(args.D, args.E)));
    for (int64_t t = begin; t < end; ++t) {
      const int64_t slot = SlotOf(*args.slots, t);
      if (slot < 0) continue;
      keys.Write(t, slot, scratch.data());
      values.Write(t, slot, scratch.data());
    }
  });
  return kAnyopOk;
}

}  // namespace
}  // namespace anyop

extern "C" int32_t anyop_append_kv_cpu(const AppendKvArgs* args, AnyopCall* call) {
  return anyop::Append(*args, call);
}
