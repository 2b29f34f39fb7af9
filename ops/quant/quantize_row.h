// SPDX-License-Identifier: Apache-2.0
// Quantises rows to float8_e4m3fn or int8: one scale for each group of columns, given or from the
// greatest magnitude of the group.
#ifndef ANYOP_OPS_QUANT_QUANTIZE_ROW_H_
#define ANYOP_OPS_QUANT_QUANTIZE_ROW_H_

#include "anyop/cpu/math.h"
#include "anyop/cpu/rows.h"

// The convention of every operator that quantises:
//   q = round to nearest even (clamp(v * reciprocal)), all in float32
//   reciprocal: 1 / scale, rounded to float32, at most float32's greatest number
//   scale, where none is given: max(greatest |v| of the group, kLeastMagnitude) / limit
//   limit: 448 for float8_e4m3fn, 127 for int8; int8 is clamped to [-128, 127]
// A number beyond the range, infinity included, is clamped. NaN is NaN in float8 and 0 in int8.
// Where no scale is given, a NaN makes the scale of its group NaN, an infinity makes it infinite,
// so that nothing finite comes back from q * scale.
namespace anyop::cpu {

constexpr float kLeastMagnitude = 1e-10f;  // a group of zeros has a scale, too
constexpr float kGreatestFactor = 0x1.fffffep127f;

// float8_e4m3fn: 1 sign, 4 exponent (bias 7), 3 mantissa bits; no infinity, 0x7f is NaN.
constexpr float kGreatestE4M3 = 448;

// Of magnitudes the bits have the order of the numbers, and NaN is above infinity.
struct GreaterMagnitude {
  float operator()(float a, float b) const { return ToBits(a) < ToBits(b) ? b : a; }
};
// The scale of a group.
inline float ScaleOf(float most, float limit) { return Max(most, kLeastMagnitude) / limit; }
// What values are multiplied with, for a scale.
inline float FactorOf(float scale) {
  return Min(Max(1 / scale, -kGreatestFactor), kGreatestFactor);
}

// n values as float8_e4m3fn.
[[maybe_unused]] ANYOP_CPU_CLONES __attribute__((noinline)) void StoreE4M3(const float* from,
                                                                           int64_t n, uint8_t* to) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float x = Min(Max(from[i], -kGreatestE4M3), kGreatestE4M3);
    const uint32_t bits = BitsOf(x), a = bits & 0x7fffffffu;
    const uint32_t denormal = BitsOf(FloatOf(a) + 0x1p14f) - 0x46800000u;  // the addition rounds
    const uint32_t normal = (a - 0x3c000000u + 0x7ffff + (a >> 20 & 1)) >> 20;
    const uint32_t number = a < 0x3c800000u ? denormal : normal;
    to[i] = static_cast<uint8_t>((x == x ? number : 0x7f) | (bits >> 24 & 0x80));
  }
}

// n values as int8.
[[maybe_unused]] ANYOP_CPU_CLONES __attribute__((noinline)) void StoreInt8(const float* from,
                                                                           int64_t n, uint8_t* to) {
  constexpr float kRound = Bits<float>::kRound;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float x = from[i] == from[i] ? Min(Max(from[i], -128.0f), 127.0f) : 0;
    to[i] = static_cast<uint8_t>(BitsOf(x + kRound) & 0xff);  // the addition rounds
  }
}

// A tensor of quantised rows and its scales.
class QuantizedRows {
 public:
  // out: rows of D elements. scale: as scales, expanded, or NULL: from the rows. scales: one for
  // each `group` columns of a row, or NULL when not wanted.
  QuantizedRows(const AnyopTensor* out, const AnyopTensor* scale, const AnyopTensor* scales,
                int64_t D, int64_t group)
      : out_(out),
        given_(scale ? scale : out),
        scale_(scale),
        scales_(scales ? static_cast<float*>(scales->data) : nullptr),
        D_(D),
        group_(group < D ? group : D),
        groups_(D > 0 ? (D + group_ - 1) / group_ : 0) {}

  // Quantises f(in[i]...), the in being RowReader<float> of a row.
  template <typename F, typename... In>
  void Write(int64_t row, F f, In&... in) const {
    for (int64_t g = 0; g < groups_; ++g) {
      const int64_t begin = g * group_, n = D_ - begin < group_ ? D_ - begin : group_;
      const float scale = scale_ ? Given(row, g) : DynamicScale(begin, n, f, in...);
      if (scales_) scales_[row * groups_ + g] = scale;
      const float reciprocal = FactorOf(scale);
      ForBlocks(n, [&](int64_t at, int64_t size) {
        float products[kBlock];
        const auto scaled = [&f, reciprocal](const auto&... v) { return f(v...) * reciprocal; };
        Apply(size, scaled, products, in.Read(begin + at, size)...);
        auto* to = reinterpret_cast<uint8_t*>(out_[row]) + begin + at;
        IsInt8() ? StoreInt8(products, size, to) : StoreE4M3(products, size, to);
      });
    }
  }

 private:
  bool IsInt8() const { return out_.dtype() == kAnyopInt8; }

  float Given(int64_t row, int64_t g) const {
    const int64_t stride = scale_->strides[scale_->ndim - 1];
    return reinterpret_cast<const float*>(given_[row])[g * stride];
  }

  template <typename F, typename... In>
  float DynamicScale(int64_t begin, int64_t n, F f, In&... in) const {
    float most = 0;
    const auto magnitude = [&f](const auto&... v) { return Magnitude(f(v...)); };
    ForBlocks(n, [&](int64_t at, int64_t size) {
      most = FoldBlock(most, GreaterMagnitude(), magnitude, size, in.Read(begin + at, size)...);
    });
    return ScaleOf(most, IsInt8() ? 127.0f : kGreatestE4M3);
  }

  Rows out_, given_;
  const AnyopTensor* scale_;
  float* scales_;
  int64_t D_, group_, groups_;
};

}  // namespace anyop::cpu

#endif  // ANYOP_OPS_QUANT_QUANTIZE_ROW_H_
