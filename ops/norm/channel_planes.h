// SPDX-License-Identifier: Apache-2.0
// A tensor of batch, channels and further sizes on the CPU, with the channels before these or last:
// its rows, and numbers of each channel.
#ifndef ANYOP_OPS_NORM_CHANNEL_PLANES_H_
#define ANYOP_OPS_NORM_CHANNEL_PLANES_H_

#include <cstring>

#include "anyop/cpu/math.h"
#include "anyop/cpu/rows.h"

namespace anyop::cpu {

// Contiguous. Channels first: rows of S elements, one for each n and c. Last: rows of C elements,
// one for each n and s; these are worked at in parts of kPixels of one n.
struct ChannelPlanes {
  static constexpr int64_t kPixels = 128;
  int64_t N, C, S, G;
  bool last, silu;

  int64_t of_group() const { return C / G; }
  int64_t parts() const { return (S + kPixels - 1) / kPixels; }
  int64_t Behind(int64_t part) const { return (part + 1) * kPixels < S ? (part + 1) * kPixels : S; }
  // Of a part of all: its pixels, and the number of its first element.
  int64_t PixelsOf(int64_t unit) const { return Behind(unit % parts()) - unit % parts() * kPixels; }
  int64_t FirstOf(int64_t unit) const {
    return (unit / parts() * S + unit % parts() * kPixels) * C;
  }
};

// Rows of n elements that lie one behind the other.
struct PlainRows {
  char* data;
  AnyopDtype dtype;
  int64_t item_bytes;

  explicit PlainRows(const AnyopTensor* tensor)
      : data(tensor ? static_cast<char*>(tensor->data) : nullptr),
        dtype(tensor ? AnyopDtypeOf(tensor) : kAnyopNoDtype),
        item_bytes(tensor ? tensor->dtype_bits / 8 : 0) {}
  char* At(int64_t element) const { return data + element * item_bytes; }
};

// The numbers of n channels from c on, or `absent`.
template <typename Wide>
inline void ReadNumbers(const PlainRows& numbers, int64_t c, int64_t n, Wide absent, Wide* to) {
  if (numbers.data)
    return Widen(Types<float, double, float16, bfloat16>(), numbers.dtype, numbers.At(c), n, to);
  for (int64_t i = 0; i < n; ++i) to[i] = absent;
}

// How many elements process p has.
inline double CountOf(const AnyopTensor* count, int64_t process) {
  const int64_t p = process * count->strides[0];
  switch (AnyopDtypeOf(count)) {
    case kAnyopInt32:
      return static_cast<const int32_t*>(count->data)[p];
    case kAnyopInt64:
      return static_cast<double>(static_cast<const int64_t*>(count->data)[p]);
    case kAnyopFloat64:
      return static_cast<const double*>(count->data)[p];
    default:
      return static_cast<double>(static_cast<const float*>(count->data)[p]);
  }
}

// each(a number of what x is computed in, unit) for units from begin on.
template <typename Work, typename Each>
inline void ForUnits(const Work* work, int64_t begin, int64_t end, Each each) {
  WithFloat(work->x.dtype, [&](auto wide) {
    for (int64_t unit = begin; unit < end; ++unit) each(wide, unit);
  });
}

inline bool IsSilu(const AnyopString& activation) {
  return activation.count == 4 && std::memcmp(activation.data, "silu", 4) == 0;
}

// z * sigmoid(z); NaN stays, and at infinity it has its limit.
template <typename Wide>
inline Wide Silu(Wide z) {
  return Max(z, -Bits<Wide>::kExpHigh) * Sigmoid(z);
}

}  // namespace anyop::cpu

#endif  // ANYOP_OPS_NORM_CHANNEL_PLANES_H_
