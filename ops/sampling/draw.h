// SPDX-License-Identifier: Apache-2.0
// What a token weighs and when it wins, in the same roundings on the CPU and on CUDA: every
// product that meets a sum is an explicit fma, and sums are of integers.
#ifndef ANYOP_OPS_SAMPLING_DRAW_H_
#define ANYOP_OPS_SAMPLING_DRAW_H_

#include <cmath>
#include <cstring>
#include <type_traits>

#include "anyop/philox.h"

#define ANYOP_DRAW_FUNCTION ANYOP_PHILOX_FUNCTION

namespace anyop::sampling {

ANYOP_DRAW_FUNCTION uint32_t BitsOf(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
ANYOP_DRAW_FUNCTION float FloatOf(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
ANYOP_DRAW_FUNCTION float MulAdd(float a, float b, float c) { return fmaf(a, b, c); }

// The order of tokens: the greater value first, equal ones by index. Greater is earlier; 0 is
// behind all. A set that a filter keeps is what is at least the Place of its last token.
using Place = uint64_t;
ANYOP_DRAW_FUNCTION uint32_t KeyOf(float x) {
  const uint32_t bits = BitsOf(x + 0.0f);  // one zero
  return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}
ANYOP_DRAW_FUNCTION Place PlaceOf(float x, uint32_t token) {
  return Place{KeyOf(x)} << 32 | static_cast<uint32_t>(~token);
}
ANYOP_DRAW_FUNCTION uint32_t TokenOf(Place place) { return ~static_cast<uint32_t>(place); }

// Digits of a Place, most significant first, for a search by counting: five of 11 bits, one of 9.
constexpr int kLevels = 6, kDigits = 2048;
ANYOP_DRAW_FUNCTION int ShiftOf(int level) { return level == 5 ? 0 : 53 - 11 * level; }

ANYOP_DRAW_FUNCTION unsigned DigitOf(Place place, int level) {
  return static_cast<unsigned>(place >> ShiftOf(level)) & (kDigits - 1);
}
ANYOP_DRAW_FUNCTION float FloatOfKey(uint32_t key) {
  return FloatOf(key ^ (key >> 31 ? 0x80000000u : 0xffffffffu));
}
// The element itself; of zeros the positive one.
ANYOP_DRAW_FUNCTION float ValueOf(Place place) {
  return FloatOfKey(static_cast<uint32_t>(place >> 32));
}

// What a row's elements weigh, against its greatest: 1. Logits: exp((x - most) / temperature).
constexpr float kGreatest = 3.40282347e38f;
struct Scale {
  float most, factor, limit;
  bool is_probs;

  ANYOP_DRAW_FUNCTION static Scale OfLogits(float most, float temperature) {
    const float factor = 1.44269504f / temperature, limit = -64.0f / factor;
    return {most, factor, limit > -kGreatest ? limit : -kGreatest, false};
  }
  ANYOP_DRAW_FUNCTION static Scale OfProbs(float most) { return {most, 1.0f / most, 0, true}; }

  ANYOP_DRAW_FUNCTION float Weight(float x) const {
    if (is_probs) return Drawn(x * factor);
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    float below = x - most;
    below = below > limit ? below : limit;
    const float shifted = MulAdd(below, factor, kRound);
    const float r = MulAdd(below, factor, -(shifted - kRound));
    // (2^r - 1) / r on |r| <= 1/2, as in anyop/cpu/math.h: to 2e-7.
    float power = MulAdd(0.00134073865f, r, 0.00967196933f);
    power = MulAdd(power, r, 0.0555030802f);
    power = MulAdd(power, r, 0.240222332f);
    power = MulAdd(power, r, 0.693147215f);
    power = MulAdd(power, r, 1.0f);
    const float weight = power * FloatOf((BitsOf(shifted) - BitsOf(kRound) + 127) << 23);
    return x >= -kGreatest ? Drawn(weight) : 0.0f;  // -inf is never drawn
  }

 private:
  // What has no mass is never drawn.
  ANYOP_DRAW_FUNCTION static float Drawn(float weight) { return weight >= 0x1p-40f ? weight : 0; }
};

// A weight in units of 2^-40: sums of these do not depend on their order. What has none is never
// drawn.
ANYOP_DRAW_FUNCTION uint64_t MassOf(float weight) {
  return static_cast<uint64_t>(static_cast<int64_t>(weight * 0x1p40f));
}

// The logarithm of a token's share of all tokens, before top_k, top_p and min_p.
ANYOP_DRAW_FUNCTION float LogShare(const Scale& scale, float x, float temperature, uint64_t total) {
  const double below = (static_cast<double>(x) - scale.most) / temperature;
  return static_cast<float>(below - log(static_cast<double>(total) * 0x1p-40));
}

// The least mass that reaches the share p of a total; at least that of one token.
ANYOP_DRAW_FUNCTION uint64_t ShareOf(float p, uint64_t total) {
  if (!(p > 0)) return 1;
  const double share = static_cast<double>(p) * static_cast<double>(total);
  uint64_t least = static_cast<uint64_t>(share);
  least += static_cast<double>(least) < share;
  return least < 1 ? 1 : least > total ? total : least;
}

// An exponential variable of mean 1 by a random word: -log(1 - u), precise where it is small.
ANYOP_DRAW_FUNCTION float ExponentialOf(uint32_t word) {
  const float u = (static_cast<float>(word) + 0.5f) * 0x1p-32f;
  const float rest = (static_cast<float>(~word) + 0.5f) * 0x1p-32f;
  // rest = 2^k m with m in [sqrt(1/2), sqrt(2)), f = m - 1; of a small u, k is 0 and f is -u.
  const uint32_t root_half = 0x3f3504f3u, above = BitsOf(rest) - root_half;
  const auto k = static_cast<float>(static_cast<int32_t>(above) >> 23);
  const float m = FloatOf((above & 0x7fffffu) + root_half);
  const bool small = word < 0x4a000000u;
  const float f = small ? -u : m - 1.0f;
  const float s = f / (2.0f + f), z = s * s;
  const float series = MulAdd(MulAdd(0.298752977f, z, 0.399774194f), z, 0.666667773f);
  const float log = MulAdd(-s, MulAdd(-z, series, f), f);
  return -MulAdd(small ? 0.0f : k, 0.693147182f, log);
}

// What is drawn for a token: the greatest wins, so that each wins in proportion to its weight.
// (Gumbel's maximum of log(weight) - log(exponential).) Four tokens share a call of Philox.
ANYOP_DRAW_FUNCTION float RaceOf(float weight, uint32_t word) {
  return weight / ExponentialOf(word);
}
ANYOP_DRAW_FUNCTION PhiloxWords WordsOfFour(uint64_t seed, uint64_t offset, uint64_t four) {
  return Philox(seed, offset, four);
}
// A number in (0, 1) of a row beside its tokens' words.
ANYOP_DRAW_FUNCTION float CoinOf(uint64_t seed, uint64_t offset, uint32_t at) {
  return PhiloxUniform(Philox(seed, offset, uint64_t{1} << 32 | at).at[0]);
}

// What one draw is asked for. Device data: nothing about it is trusted.
struct Request {
  uint64_t seed, offset;
  int64_t row;
  int64_t k;  // 0: all
  float temperature, top_p, min_p;
  bool is_good;

  ANYOP_DRAW_FUNCTION bool HasTopP() const { return top_p < 1; }
};

// Parameters of B draws, each with its step: 0 where one holds for all.
template <typename T>
struct PerRow {
  const void* data;
  int64_t step;
  bool is_wide;  // int64, not int32; floats are float32

  ANYOP_DRAW_FUNCTION T operator[](int64_t b) const {
    if constexpr (std::is_same_v<T, float>) {
      return static_cast<const float*>(data)[b * step];
    } else {
      return is_wide ? static_cast<const int64_t*>(data)[b * step]
                     : static_cast<const int32_t*>(data)[b * step];
    }
  }
};
template <typename T, typename Tensor>
PerRow<T> PerRowOf(const Tensor* tensor) {
  if (!tensor) return {nullptr, 0, false};
  return {tensor->data, tensor->strides ? tensor->strides[0] : 0, tensor->dtype_bits == 64};
}

struct Requests {
  PerRow<int64_t> seed, offset, rows, top_k;
  PerRow<float> temperature, top_p, min_p;
  int64_t N, V;
  bool is_probs, top_k_first;

  ANYOP_DRAW_FUNCTION Request operator[](int64_t b) const {
    Request r = {0, 0, b, 0, 1.0f, 1.0f, 0.0f, true};
    if (seed.data) r.seed = static_cast<uint64_t>(seed[b]);
    if (offset.data) r.offset = static_cast<uint64_t>(offset[b]);
    if (rows.data) r.row = rows[b];
    if (top_k.data) r.k = top_k[b];
    if (temperature.data) r.temperature = temperature[b];
    if (top_p.data) r.top_p = top_p[b];
    if (min_p.data) r.min_p = min_p[b];
    return Checked(r);
  }
  ANYOP_DRAW_FUNCTION Request Checked(Request r) const {
    r.is_good =
        r.row >= 0 && r.row < N && r.temperature >= 0 && r.top_p == r.top_p && r.min_p == r.min_p;
    if (r.k <= 0 || r.k >= V) r.k = 0;
    if (r.temperature < 0x1p-100f) {  // of 0, and where dividing by it would overflow
      r.k = 1;
      r.temperature = 1;
    }
    return r;
  }
};

// Whether a row without NaN, of this greatest element, has a distribution.
ANYOP_DRAW_FUNCTION bool HasWeights(float most, bool is_probs) {
  return most <= kGreatest && (is_probs ? most > 0x1p-100f : most >= -kGreatest);
}

// What makes the sum of probabilities 1 that have this mass together.
ANYOP_DRAW_FUNCTION float FactorOf(const Scale& scale, uint64_t mass) {
  return static_cast<float>(1 / (static_cast<double>(mass) * 0x1p-40 * scale.most));
}

// Which elements of rows are kept, for top_k_mask, top_k_renorm and top_p_renorm.
struct Keeps {
  PerRow<int64_t> top_k;
  PerRow<float> top_p;
  int64_t V;
  bool is_probs;
};

}  // namespace anyop::sampling

#endif  // ANYOP_OPS_SAMPLING_DRAW_H_
