// SPDX-License-Identifier: Apache-2.0
// What pruning to 2 of 4 keeps of a matrix: a stripe is four columns, of which each row keeps the
// two largest magnitudes. Sums are float64; those of permutations and swaps are added in one order
// on the CPU and on CUDA.
#ifndef ANYOP_OPS_SPARSITY_TWO_OF_FOUR_H_
#define ANYOP_OPS_SPARSITY_TWO_OF_FOUR_H_

#include <math.h>

#include <cstdio>

#include "anyop/kernel.h"

#ifdef __CUDACC__
#define ANYOP_STRIPE_FUNCTION __host__ __device__ inline
#else
#define ANYOP_STRIPE_FUNCTION inline
#endif

namespace anyop {

constexpr int kSumLanes = 8;  // row r is added to sum r % 8 of its permutation

ANYOP_STRIPE_FUNCTION float Larger(float a, float b) { return a > b ? a : b; }
ANYOP_STRIPE_FUNCTION float Smaller(float a, float b) { return a > b ? b : a; }

// The two largest magnitudes of four, added; NaN if one of them is.
ANYOP_STRIPE_FUNCTION double Kept(float a, float b, float c, float d) {
  a = fabsf(a), b = fabsf(b), c = fabsf(c), d = fabsf(d);
  const float high = Larger(a, b), other = Larger(c, d);
  const float second = Larger(Smaller(high, other), Larger(Smaller(a, b), Smaller(c, d)));
  const double kept = double{Larger(high, other)} + double{second};
  const float all = a + b + c + d;
  return all != all ? double{all} : kept;
}

ANYOP_STRIPE_FUNCTION double AddLanes(const double (&sums)[kSumLanes]) {
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

struct Matrix {
  const float* data;
  int64_t step, R, C;

  explicit Matrix(const AnyopTensor* tensor)
      : data(static_cast<const float*>(tensor->data)),
        step(tensor->strides[0]),
        R(tensor->shape[0]),
        C(tensor->shape[1]) {}
  ANYOP_STRIPE_FUNCTION const float* At(int64_t r, int64_t c) const { return data + r * step + c; }
};

// Indices of int32 or int64, without gaps.
struct Indices {
  void* data;
  bool narrow;

  explicit Indices(const AnyopTensor* tensor)
      : data(tensor->data), narrow(tensor->dtype_bits == 32) {}
  ANYOP_STRIPE_FUNCTION int64_t operator[](int64_t i) const {
    return narrow ? static_cast<const int32_t*>(data)[i] : static_cast<const int64_t*>(data)[i];
  }
  ANYOP_STRIPE_FUNCTION void Set(int64_t i, int64_t value) const {
    if (narrow) {
      static_cast<int32_t*>(data)[i] = static_cast<int32_t>(value);
    } else {
      static_cast<int64_t*>(data)[i] = value;
    }
  }
};

// kAnyopOk, or the noted error of the first of n indices that is not in [0, limit); columns: those
// of a row of indices, 0 where there is one row.
inline int32_t CheckIndices(AnyopCall* call, const char* name, const Indices& indices, int64_t n,
                            int64_t limit, int64_t columns) {
  int64_t i = 0;
  while (i < n && indices[i] >= 0 && indices[i] < limit) ++i;
  if (i == n) return kAnyopOk;
  char place[64], text[192];
  const auto row = static_cast<long long>(columns ? i / columns : 0);
  const auto column = static_cast<long long>(columns ? i % columns : i);
  if (columns) {
    std::snprintf(place, sizeof place, "%lld, %lld", row, column);
  } else {
    std::snprintf(place, sizeof place, "%lld", column);
  }
  std::snprintf(text, sizeof text, "%s[%s] is %lld, expected 0 <= index < %lld", name, place,
                static_cast<long long>(indices[i]), static_cast<long long>(limit));
  return call->fail(call, kAnyopIndexError, text);
}

// The best of some permutations: the first of the greatest sums, none of which is NaN.
struct BestPermutation {
  double sum;
  int64_t p;

  ANYOP_STRIPE_FUNCTION void Take(double other, int64_t q) {
    if (other > sum || (other == sum && q < p)) sum = other, p = q;
  }
};

}  // namespace anyop

#endif  // ANYOP_OPS_SPARSITY_TWO_OF_FOUR_H_
