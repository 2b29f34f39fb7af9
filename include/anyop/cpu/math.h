// SPDX-License-Identifier: Apache-2.0
// exp, log, tanh, erf and friends for float and double, written so that loops over them vectorise.
#ifndef ANYOP_CPU_MATH_H_
#define ANYOP_CPU_MATH_H_

#include <stdint.h>

// No branches, no calls, no tables: a loop marked `#pragma omp simd` becomes vector code at every
// ISA level. Largest error in ulp over the whole range, measured by bench/simd/math_error.cc
// (float; double):
//   Exp 1.1; 1.1   Expm1 1.7; 2.2   Log 0.9; 1.2   Tanh 2.5; 2.6   Erf 1.4; 1.4
// Denormals, infinities and NaN are right. Coefficients are minimax fits of our own (Remez, 60
// digits).
namespace anyop::cpu {

template <typename Wide>
struct Bits;
template <>
struct Bits<float> {
  using Word = uint32_t;
  static constexpr int kMantissa = 23;
  static constexpr Word kBias = 127;
  static constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  static constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  static constexpr float kExpLow = -104.0f, kExp2Low = -127.0f, kExp2High = 128.0f,
                         kExpHigh = 89.0f, kTanhOne = 9.1f, kErfOne = 4.0f;
  static constexpr float kSmallest = 0x1p-126f, kInfinity = __builtin_inff(),
                         kNaN = __builtin_nanf("");
  // (e^r - 1 - r) / r^2 on |r| <= ln(2)/2
  static constexpr float kExp[] = {0.50000001f, 0.16666513f, 0.0416661872f, 0.0083695913f,
                                   0.00139517246f};
  // (2^r - 1) / r on |r| <= 1/2
  static constexpr float kExp2[] = {0.693147215f, 0.240222332f, 0.0555030802f, 0.00967196933f,
                                    0.00134073865f};
  // (log((1+s)/(1-s)) / s - 2) / s^2 in powers of s^2
  static constexpr float kLog[] = {0.666667773f, 0.399774194f, 0.298752977f};
  // erf(x) / x - 1 in powers of x^2 on |x| <= 1
  static constexpr float kErfSmall[] = {0.128379166f,   -0.376126271f,  0.112836002f,
                                        -0.0268544447f, 0.00518953533f, -0.000802084007f,
                                        7.88911289e-5f};
  // log(1 - erf(x)) in powers of x on 1 <= x <= 4
  static constexpr float kErfBig[] = {-0.000353868668f, -1.12703939f,  -0.638226831f,
                                      -0.103036298f,    0.0218047711f, -0.00293946161f,
                                      0.000185558231f};
};
template <>
struct Bits<double> {
  using Word = uint64_t;
  static constexpr int kMantissa = 52;
  static constexpr Word kBias = 1023;
  static constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr double kLn2High = 0x1.62e42feep-1, kLn2Low = 0x1.a39ef35793c76p-33;
  static constexpr double kExpLow = -746.0, kExp2Low = -1023.0, kExp2High = 1024.0,
                          kExpHigh = 710.0, kTanhOne = 19.1, kErfOne = 6.0;
  static constexpr double kSmallest = 0x1p-1022, kInfinity = __builtin_inf(),
                          kNaN = __builtin_nan("");
  static constexpr double kExp[] = {0.500000000000001395,   0.166666666666667024,
                                    0.0416666666665037574,  0.00833333333330490206,
                                    0.00138888889503906276, 0.00019841269922529285,
                                    2.48014861757612798e-5, 2.75572116323002782e-6,
                                    2.76327068924305225e-7, 2.51193491489744663e-8};
  static constexpr double kExp2[] = {
      0.693147180559945308,   0.240226506959101337,   0.0555041086648217449,
      0.00961812910759311669, 0.00133335581463784104, 0.000154035304583951852,
      1.52527338680639562e-5, 1.32154346414900084e-6, 1.01780462676664605e-7,
      7.07389299009795464e-9, 4.45741359374485733e-10};
  static constexpr double kLog[] = {
      0.666666666666673571, 0.399999999994051102, 0.285714287447185228, 0.222221983146082604,
      0.181835787124196868, 0.153136594893418042, 0.148000820397125061};
  static constexpr double kErfSmall[] = {
      0.128379167095512567,    -0.376126389031835466,   0.112837916709452518,
      -0.0268661706432759844,  0.00522397760742177795,  -0.000854832598962857474,
      0.000120552953188188872, -1.49247446373895903e-5, 1.64475174250804171e-6,
      -1.62091744240505977e-7, 1.37229715153307429e-8,  -7.8011827428256816e-10};
  static constexpr double kErfBig[] = {
      -1.08211481675450858e-6,  -1.12836854598105567,    -0.636668268348239652,
      -0.102635894673926793,    0.0188623172227461389,   0.000587965971475629396,
      -0.00210251350965118755,  0.000922694837454005721, -0.000232219993552917952,
      2.86972266885811601e-5,   3.36990358936453139e-6,  -2.60927235569278084e-6,
      6.75091679805157447e-7,   -1.06392036019841792e-7, 1.07221750256557089e-8,
      -6.40818422078483367e-10, 1.73961188220065018e-11};
};

template <typename Wide>
inline typename Bits<Wide>::Word ToBits(Wide x) {
  typename Bits<Wide>::Word word;
  __builtin_memcpy(&word, &x, sizeof(word));
  return word;
}
template <typename Wide>
inline Wide FromBits(typename Bits<Wide>::Word word) {
  Wide x;
  __builtin_memcpy(&x, &word, sizeof(x));
  return x;
}

// c[0] + c[1] x + ...; recursive, because a loop inside would keep the loop around it from
// vectorising.
template <int I = 0, typename Wide, int N>
inline Wide Polynomial(const Wide (&c)[N], Wide x) {
  if constexpr (I == N - 1) {
    return c[I];
  } else {
    return Polynomial<I + 1>(c, x) * x + c[I];
  }
}

// |x| and the sign bit of x.
template <typename Wide>
inline Wide Magnitude(Wide x) {
  return FromBits<Wide>(ToBits(x) << 1 >> 1);
}
template <typename Wide>
inline Wide WithSign(Wide magnitude, Wide sign) {
  const auto mask = typename Bits<Wide>::Word{1} << (8 * sizeof(Wide) - 1);
  return FromBits<Wide>(ToBits(magnitude) | (ToBits(sign) & mask));
}
template <typename Wide>
inline Wide Min(Wide x, Wide limit) {  // NaN stays NaN
  return x > limit ? limit : x;
}
template <typename Wide>
inline Wide Max(Wide x, Wide limit) {
  return x < limit ? limit : x;
}

// x = k ln 2 + r with |r| <= ln(2)/2; `power` is k + 2 bias, small_part is e^r - 1.
template <typename Wide>
struct Reduced {
  typename Bits<Wide>::Word power;
  Wide small_part;
};
template <typename Wide>
inline Reduced<Wide> ReduceExp(Wide x) {
  using B = Bits<Wide>;
  const Wide shifted = x * static_cast<Wide>(1.4426950408889634) + B::kRound;
  const Wide k = shifted - B::kRound;
  const Wide r = (x - k * B::kLn2High) - k * B::kLn2Low;
  return {ToBits(shifted) - ToBits(B::kRound) + 2 * B::kBias, r * r * Polynomial(B::kExp, r) + r};
}

template <typename Wide>
inline Wide Exp(Wide x) {
  using B = Bits<Wide>;
  const Reduced<Wide> e = ReduceExp(Min(Max(x, B::kExpLow), B::kExpHigh));
  const auto half =
      e.power >> 1;  // 2^k in two factors, so that denormal and infinite results round once
  return (e.small_part + 1) * FromBits<Wide>(half << B::kMantissa) *
         FromBits<Wide>((e.power - half) << B::kMantissa);
}

// 2^x for the inside of kernels, at two thirds of the cost of Exp: to 2e-7 for float, and 0 below
// the normal range. Exp2Bounded is for -127 <= x <= 127 (double: 1023), Exp2Negative for x <= 127,
// Exp2 for any x.
template <typename Wide>
inline Wide Exp2Bounded(Wide x) {
  using B = Bits<Wide>;
  const Wide shifted = x + B::kRound;
  const Wide r = x - (shifted - B::kRound);
  const auto power = ToBits(shifted) - ToBits(B::kRound) + B::kBias;  // -127 gives a factor of 0
  return (r * Polynomial(B::kExp2, r) + 1) * FromBits<Wide>(power << B::kMantissa);
}
template <typename Wide>
inline Wide Exp2Negative(Wide x) {
  return Exp2Bounded(Max(x, Bits<Wide>::kExp2Low));
}
template <typename Wide>
inline Wide Exp2(Wide x) {
  return Exp2Negative(Min(x, Bits<Wide>::kExp2High));
}
template <typename Wide>
constexpr Wide kLog2E = static_cast<Wide>(1.4426950408889634);

// e^x - 1 for |x| < 80.
template <typename Wide>
inline Wide Expm1(Wide x) {
  using B = Bits<Wide>;
  const Reduced<Wide> e = ReduceExp(x);
  const Wide scale = FromBits<Wide>((e.power - B::kBias) << B::kMantissa);
  return e.small_part * scale + (scale - 1);
}

template <typename Wide>
inline Wide Log(Wide x) {
  using B = Bits<Wide>;
  using Word = typename B::Word;
  constexpr Word kScale = B::kMantissa + 1;
  const bool tiny = x < B::kSmallest;
  const Word word = ToBits(tiny ? x * static_cast<Wide>(Word{1} << kScale) : x);
  // Take the exponent such that the mantissa lies in [sqrt(1/2), sqrt(2)).
  const Word root_half = ToBits(static_cast<Wide>(0.70710678118654752));
  const Word exponent = (word - root_half + (B::kBias << B::kMantissa)) >> B::kMantissa;
  const Wide m = FromBits<Wide>(word - ((exponent - B::kBias) << B::kMantissa));
  const Wide f = m - 1, s = f / (m + 1), z = s * s;
  // exponent is at most 2^11, so that adding it to the bits of kRound makes it a floating-point
  // number.
  const Wide k = FromBits<Wide>(ToBits(B::kRound) + exponent) - B::kRound -
                 static_cast<Wide>(B::kBias) - (tiny ? static_cast<Wide>(kScale) : 0);
  // log(m) = f - s (f - s^2 R), which keeps the leading f exact.
  const Wide small_part = f - s * (f - z * Polynomial(B::kLog, z));
  Wide result = k * B::kLn2High + (small_part + k * B::kLn2Low);
  result = x == 0 ? -B::kInfinity : result;
  result = x < 0 ? B::kNaN : result;
  return x < B::kInfinity ? result : x;  // infinity and NaN are their own logarithms
}

template <typename Wide>
inline Wide Tanh(Wide x) {
  const Wide e = Expm1(2 * Min(Magnitude(x), Bits<Wide>::kTanhOne));
  return WithSign(e / (e + 2), x);
}

template <typename Wide>
inline Wide Erf(Wide x) {
  using B = Bits<Wide>;
  const Wide a = Min(Magnitude(x), B::kErfOne);
  const Wide small_value = a * Polynomial(B::kErfSmall, a * a) + a;
  const Wide big_value = 1 - Exp(Polynomial(B::kErfBig, a));
  return WithSign(a > 1 ? big_value : small_value, x);
}

// |x|, but `limit` where that is less or x is NaN: cheaper than comparing floats. limit is
// positive.
template <typename Wide>
inline Wide LimitedMagnitude(Wide x, Wide limit) {
  const auto word = ToBits(Magnitude(x)), most = ToBits(limit);
  return FromBits<Wide>(word < most ? word : most);
}

// 1 / (1 + e^-x), relative error 3e-7 for float. Not for NaN.
template <typename Wide>
inline Wide Sigmoid(Wide x) {
  const Wide e = Exp2Bounded(-LimitedMagnitude(kLog2E<Wide> * x, -Bits<Wide>::kExp2Low));
  return (x > 0 ? 1 : e) / (1 + e);
}

// Sigmoid and its derivative, with one exponential. Not for NaN.
template <typename Wide>
struct SigmoidSlope {
  Wide value, slope;
};
template <typename Wide>
inline SigmoidSlope<Wide> SigmoidWithSlope(Wide x) {
  const Wide e = Exp2Bounded(-LimitedMagnitude(kLog2E<Wide> * x, -Bits<Wide>::kExp2Low));
  const Wide r = 1 / (1 + e);
  return {(x > 0 ? 1 : e) * r, e * r * r};
}
// The derivative of x Sigmoid(x). At infinity it has its limit, and NaN stays NaN.
template <typename Wide>
inline Wide SiluSlope(Wide x) {
  const SigmoidSlope<Wide> s = SigmoidWithSlope(x);
  return s.value + Min(Max(x, -Bits<Wide>::kExpHigh), Bits<Wide>::kExpHigh) * s.slope;
}

// The normal distribution function (1 + erf(x / sqrt(2))) / 2, to 3e-7 / (1 + |x|) for float. Not
// for NaN.
inline float NormalCdf(float x) {
  // log2 of its value at -|x|, by error of the value itself. At 13.2 that is -126.9, which
  // Exp2Bounded makes 0.
  constexpr float kTail[] = {-0.999999385f,  -1.15113338f,     -0.458994828f, -0.0530978562f,
                             0.00787036209f, -0.000703394119f, 2.53976654e-5f};
  const float tail = Exp2Bounded(Polynomial(kTail, LimitedMagnitude(x, 13.2f)));
  return x > 0 ? 1 - tail : tail;
}
inline double NormalCdf(double x) { return 0.5 + 0.5 * Erf(x * 0.70710678118654752); }

}  // namespace anyop::cpu

#endif  // ANYOP_CPU_MATH_H_
