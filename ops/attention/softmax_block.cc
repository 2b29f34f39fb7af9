// SPDX-License-Identifier: Apache-2.0
// Vector loops of attention, compiled for each instruction set.
//
// Scores by key: a vector holds as many rows, so that maxima and sums need no folding of vectors,
// which costs more than the rest on short rows. Scores by row, for few rows: a vector holds keys of
// one row.
#include "softmax_block.h"

#include <algorithm>
#include <type_traits>

#include "anyop/cpu.h"
#include "anyop/cpu/math.h"

namespace anyop {
namespace {

constexpr double kLog2E = 1.44269504088896340736;
constexpr int64_t kStrip = 32;  // rows at a time

template <typename T>
constexpr T kNothing = -cpu::Bits<T>::kInfinity;

// 2^x for x <= 0: a third less work than cpu::Exp. Relative error 1.2e-7, of which 7.5e-8 is the
// polynomial's (a Remez fit of our own); below 2^-125 it is 0. NaN stays NaN.
inline float Exp2(float x) {
  const float shifted = x + (cpu::Bits<float>::kRound + 127);  // rounds; the low bits are k + 127
  const float r = x - (shifted - (cpu::Bits<float>::kRound + 127));
  float power = 0.00132764726f;  // no loop over coefficients: the compiler would not unroll it
  power = power * r + 0.00967554134f;
  power = power * r + 0.0555071327f;
  power = power * r + 0.240221197f;
  power = power * r + 0.693146967f;
  power = power * r + 1.00000007f;
  const float value = power * cpu::FromBits<float>(cpu::ToBits(shifted) << 23);
  return x < -125 ? 0 : value;
}
inline double Exp2(double x) { return cpu::Exp(x * 0.69314718055994530942); }

template <typename T>
T BaseOf(T max) {  // -inf - -inf would be NaN
  return max == kNothing<T> ? 0 : max;
}

template <typename T>
void Multiply(T factor, int64_t n, T* x) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

// Brings what a row has so far to the new maximum.
template <typename T>
void JoinRow(const SoftmaxBlock<T>& b, int64_t row, T max, T sum) {
  if (!b.first) {
    const T factor = Exp2(b.max[row] - BaseOf(max));
    sum += b.sum[row] * factor;
    if (factor != 1) Multiply(factor, b.E, b.out + row * b.E);
  }
  b.max[row] = max;
  b.sum[row] = sum;
}

// Rows first to first + n of scores by key.
template <typename T, typename Count>
void UpdateStrip(const SoftmaxBlock<T>& b, int64_t first, Count n) {
  T* scores = b.scores + first;
  T max[kStrip], base[kStrip], sum[kStrip];
  for (int64_t j = 0; j < n; ++j) {
    max[j] = b.first ? kNothing<T> : b.max[first + j];
    sum[j] = 0;
  }
  for (int64_t key = 0; key < b.keys; ++key) {
    const T* x = scores + key * b.rows;
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) max[j] = x[j] > max[j] ? x[j] : max[j];
  }
  for (int64_t j = 0; j < n; ++j) base[j] = BaseOf(max[j]);
  for (int64_t key = 0; key < b.keys; ++key) {
    T* x = scores + key * b.rows;
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      x[j] = Exp2(x[j] - base[j]);
      sum[j] += x[j];
    }
  }
  for (int64_t j = 0; j < n; ++j) JoinRow(b, first + j, max[j], sum[j]);
}

template <typename T>
void UpdateByKey(const SoftmaxBlock<T>& b) {
  for (int64_t key = 0; b.bias && key < b.keys; ++key) {
    T* x = b.scores + key * b.rows;
    const T* own = b.bias + key * b.rows;
    const T shared = b.bias[key] * static_cast<T>(kLog2E);
    if (b.own_bias) {  // NOLINT(bugprone-branch-clone): a pragma is no statement
#pragma omp simd
      for (int64_t j = 0; j < b.rows; ++j) x[j] += own[j] * static_cast<T>(kLog2E);
    } else {
#pragma omp simd
      for (int64_t j = 0; j < b.rows; ++j) x[j] += shared;
    }
  }
  for (int64_t key = 0; b.visible && key < b.keys; ++key) {
    T* x = b.scores + key * b.rows;
#pragma omp simd
    for (int64_t j = 0; j < b.rows; ++j)
      x[j] = static_cast<T>(key) < b.visible[j] ? x[j] : kNothing<T>;
  }
  for (int64_t key = 0; b.hidden && key < b.keys; ++key) {
    T* x = b.scores + key * b.rows;
#pragma omp simd
    for (int64_t j = 0; j < b.rows; ++j)
      x[j] = static_cast<T>(key) < b.hidden[j] ? kNothing<T> : x[j];
  }
  int64_t row = 0;
  for (; row + kStrip <= b.rows; row += kStrip)
    UpdateStrip(b, row, std::integral_constant<int64_t, kStrip>());
  if (row < b.rows) UpdateStrip(b, row, b.rows - row);
}

template <typename T>
void UpdateRow(const SoftmaxBlock<T>& b, int64_t row) {
  const int64_t from = b.hidden ? static_cast<int64_t>(std::min(b.hidden[row], b.visible[row])) : 0;
  const int64_t n = (b.visible ? static_cast<int64_t>(b.visible[row]) : b.keys) - from;
  T* x = b.scores + row * b.keys;
  std::fill(x, x + from, T(0));
  std::fill(x + from + n, x + b.keys, T(0));
  x += from;
  if (b.bias) {
    const T* bias = b.bias + (b.own_bias ? row * b.keys : 0) + from;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) x[i] += bias[i] * static_cast<T>(kLog2E);
  }
  T max = b.first ? kNothing<T> : b.max[row], sum = 0;
#pragma omp simd reduction(max : max)
  for (int64_t i = 0; i < n; ++i) max = x[i] > max ? x[i] : max;
  const T base = BaseOf(max);
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    x[i] = Exp2(x[i] - base);
    sum += x[i];
  }
  JoinRow(b, row, max, sum);
}

template <typename T>
void Update(const SoftmaxBlock<T>& b) {
  if (b.by_key) return UpdateByKey(b);
  for (int64_t row = 0; row < b.rows; ++row) UpdateRow(b, row);
}

ANYOP_CPU_CLONES void UpdateFloat(const SoftmaxBlock<float>& block) { Update(block); }

template <typename T>
void MaskRow(const uint8_t* may, int64_t step, int64_t n, T* to) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) to[i] = may[i * step] ? T(0) : kNothing<T>;
}
ANYOP_CPU_CLONES void MaskFloat(const uint8_t* may, int64_t step, int64_t n, float* to) {
  if (step == 1) return MaskRow(may, 1, n, to);
  MaskRow(may, step, n, to);
}

template <typename T>
void CapScores(T cap, int64_t n, T* x) {
  const T share = 1 / cap;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) x[i] = cap * cpu::Tanh(x[i] * share);
}
ANYOP_CPU_CLONES void CapFloat(float cap, int64_t n, float* x) { CapScores(cap, n, x); }

template <typename T>
bool IsFinite(const T* x, int64_t n) {
  T sum = 0;  // 0 times what is not finite is NaN
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += x[i] * 0;
  return sum == 0;
}
ANYOP_CPU_CLONES bool IsFiniteFloat(const float* x, int64_t n) { return IsFinite(x, n); }

ANYOP_CPU_CLONES bool IsFiniteBF16(const uint16_t* x, int64_t n) {
  uint16_t bad = 0;
#pragma omp simd reduction(| : bad)
  for (int64_t i = 0; i < n; ++i) bad |= (x[i] & 0x7f80) == 0x7f80;
  return bad == 0;
}

ANYOP_CPU_CLONES void Split(const float* x, int64_t n, uint16_t* high, uint16_t* low) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = cpu::BitsOf(x[i]);
    const float rest = x[i] - cpu::FloatOf(bits & 0xffff0000u);
    high[i] = static_cast<uint16_t>(bits >> 16);
    low[i] = static_cast<uint16_t>(rest == rest ? cpu::BitsOf(rest) >> 16 : 0);
  }
}

ANYOP_CPU_CLONES void ScaleFloat(float factor, int64_t n, float* x) { Multiply(factor, n, x); }

typedef float Float4 __attribute__((vector_size(16), aligned(4), may_alias));

// Four rows of four to four columns: a quarter of the cost of element by element.
inline void Transpose4(const float* from, int64_t from_step, float* to, int64_t to_step) {
  Float4 row[4];
  for (int i = 0; i < 4; ++i) row[i] = *reinterpret_cast<const Float4*>(from + i * from_step);
  const Float4 a = __builtin_shufflevector(row[0], row[1], 0, 4, 1, 5);
  const Float4 b = __builtin_shufflevector(row[2], row[3], 0, 4, 1, 5);
  const Float4 c = __builtin_shufflevector(row[0], row[1], 2, 6, 3, 7);
  const Float4 d = __builtin_shufflevector(row[2], row[3], 2, 6, 3, 7);
  const Float4 col[4] = {
      __builtin_shufflevector(a, b, 0, 1, 4, 5), __builtin_shufflevector(a, b, 2, 3, 6, 7),
      __builtin_shufflevector(c, d, 0, 1, 4, 5), __builtin_shufflevector(c, d, 2, 3, 6, 7)};
  for (int i = 0; i < 4; ++i) *reinterpret_cast<Float4*>(to + i * to_step) = col[i];
}

}  // namespace

void UpdateSoftmax(const SoftmaxBlock<float>& block) { UpdateFloat(block); }
void UpdateSoftmax(const SoftmaxBlock<double>& block) { Update(block); }

void MaskToBias(const uint8_t* may, int64_t step, int64_t n, float* to) {
  MaskFloat(may, step, n, to);
}
void MaskToBias(const uint8_t* may, int64_t step, int64_t n, double* to) {
  MaskRow(may, step, n, to);
}

void Cap(float cap, int64_t n, float* x) { CapFloat(cap, n, x); }
void Cap(double cap, int64_t n, double* x) { CapScores(cap, n, x); }

bool AllFinite(const float* x, int64_t n) { return IsFiniteFloat(x, n); }
bool AllFinite(const double* x, int64_t n) { return IsFinite(x, n); }
bool AllFiniteBF16(const uint16_t* x, int64_t n) { return IsFiniteBF16(x, n); }

void SplitBF16(const float* x, int64_t n, uint16_t* high, uint16_t* low) { Split(x, n, high, low); }

void Scale(float factor, int64_t n, float* x) { ScaleFloat(factor, n, x); }
void Scale(double factor, int64_t n, double* x) { Multiply(factor, n, x); }

void Transpose(const float* from, int64_t rows, int64_t cols, float* to) {
  const int64_t whole = cols / 4 * 4;
  int64_t row = 0;
  for (; row + 4 <= rows; row += 4) {
    for (int64_t col = 0; col < whole; col += 4)
      Transpose4(from + row * cols + col, cols, to + col * rows + row, rows);
    for (int64_t i = row; i < row + 4; ++i)
      for (int64_t col = whole; col < cols; ++col) to[col * rows + i] = from[i * cols + col];
  }
  for (; row < rows; ++row)
    for (int64_t col = 0; col < cols; ++col) to[col * rows + row] = from[row * cols + col];
}
void Transpose(const double* from, int64_t rows, int64_t cols, double* to) {
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t col = 0; col < cols; ++col) to[col * rows + row] = from[row * cols + col];
}

}  // namespace anyop
