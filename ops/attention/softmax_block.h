// SPDX-License-Identifier: Apache-2.0
// Vector loops of attention: scores of a block of keys to weights, running maximum and sum.
#pragma once

#include <cstdint>

namespace anyop {

// Scores of some queries and some keys, as multiples of ln 2, so that exp is a power of two.
// Running values are those of the keys before this block.
template <typename T>
struct SoftmaxBlock {
  T* scores;
  bool by_key;  // element (row, key) is scores[key * rows + row], else scores[row * keys + key]
  int64_t rows;
  int64_t keys;
  const T* bias;     // added to the scores, in units of 1; nullptr: none
  bool own_bias;     // laid out as the scores, else one number for each key
  const T* visible;  // each row may see keys below this; nullptr: all
  const T* hidden;   // and from this on, at most visible; nullptr: 0
  T* max;
  T* sum;
  T* out;  // rows of E, sums of weighted values so far
  int64_t E;
  bool first;  // no keys before these: max, sum and out are not read
};

// scores become 2^(score - max); max, sum and out are brought to the new maximum.
// A row that has seen nothing but -inf has maximum -inf and sum 0. NaN in a score reaches the sum.
void UpdateSoftmax(const SoftmaxBlock<float>& block);
void UpdateSoftmax(const SoftmaxBlock<double>& block);

// to[i] = 0 where may[i * step], else -inf.
void MaskToBias(const uint8_t* may, int64_t step, int64_t n, float* to);
void MaskToBias(const uint8_t* may, int64_t step, int64_t n, double* to);

// x = cap tanh(x / cap).
void Cap(float cap, int64_t n, float* x);
void Cap(double cap, int64_t n, double* x);

// Neither NaN nor infinity.
bool AllFinite(const float* x, int64_t n);
bool AllFinite(const double* x, int64_t n);
bool AllFiniteBF16(const uint16_t* x, int64_t n);

// x as the sum of two numbers of bfloat16, but for 2^-15 of it: both are cut off. What is not
// finite is high's alone.
void SplitBF16(const float* x, int64_t n, uint16_t* high, uint16_t* low);

// x *= factor.
void Scale(float factor, int64_t n, float* x);
void Scale(double factor, int64_t n, double* x);

// to[col * rows + row] = from[row * cols + col].
void Transpose(const float* from, int64_t rows, int64_t cols, float* to);
void Transpose(const double* from, int64_t rows, int64_t cols, double* to);

}  // namespace anyop
