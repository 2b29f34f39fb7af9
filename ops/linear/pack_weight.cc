// SPDX-License-Identifier: Apache-2.0
// Copies pairs of factors, one panel of 64 rows after the other.
#include "anyop/ops/pack_weight.h"

#include <cstring>

extern "C" int32_t anyop_pack_weight_cpu(const PackWeightArgs* args, AnyopCall* call) {
  constexpr int64_t kColumns = 64;
  const int64_t J = args->J, pair = args->weight->dtype_bits / 4;  // bytes
  const auto* from = static_cast<const char*>(args->weight->data);
  auto* to = static_cast<char*>(args->out->data);
  anyop::ParallelFor(
      call, args->P, 16384 / (J * kColumns + 1) + 1, [&](int64_t begin, int64_t end) {
        constexpr int64_t kTogether = 16;  // pairs of a row, which fill a line of the cache
        for (int64_t p = begin; p < end; ++p) {
          for (int64_t first = 0; first < J; first += kTogether) {
            const int64_t last = first + kTogether < J ? first + kTogether : J;
            for (int64_t n = 0; n < kColumns; ++n) {
              const char* row = from + (p * kColumns + n) * J * pair;
              for (int64_t j = first; j < last; ++j)
                std::memcpy(to + ((p * J + j) * kColumns + n) * pair, row + j * pair,
                            static_cast<size_t>(pair));
            }
          }
        }
      });
  return kAnyopOk;
}
