/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic of sizes in generated code: what overflows or divides by zero is ANYOP_NO_SIZE, and so
   is all that follows from it. C. */
#ifndef ANYOP_SIZE_MATH_H_
#define ANYOP_SIZE_MATH_H_

#include <stdint.h>

#define ANYOP_NO_SIZE INT64_MIN

static inline int AnyopNoSize(int64_t a, int64_t b) {
  return a == ANYOP_NO_SIZE || b == ANYOP_NO_SIZE;
}

static inline int64_t AnyopSizeAdd(int64_t a, int64_t b) {
  int64_t sum;
  return AnyopNoSize(a, b) || __builtin_add_overflow(a, b, &sum) ? ANYOP_NO_SIZE : sum;
}

static inline int64_t AnyopSizeSubtract(int64_t a, int64_t b) {
  int64_t difference;
  return AnyopNoSize(a, b) || __builtin_sub_overflow(a, b, &difference) ? ANYOP_NO_SIZE
                                                                        : difference;
}

static inline int64_t AnyopSizeMultiply(int64_t a, int64_t b) {
  int64_t product;
  return AnyopNoSize(a, b) || __builtin_mul_overflow(a, b, &product) ? ANYOP_NO_SIZE : product;
}

/* Rounds down, as Python's //. */
static inline int64_t AnyopSizeDivide(int64_t a, int64_t b) {
  if (AnyopNoSize(a, b) || b == 0) return ANYOP_NO_SIZE;
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

/* Rounds up. */
static inline int64_t AnyopSizeCeilDivide(int64_t a, int64_t b) {
  if (AnyopNoSize(a, b) || b == 0) return ANYOP_NO_SIZE;
  return a / b + (a % b != 0 && (a < 0) == (b < 0));
}

/* Of the sign of b, as Python's %. */
static inline int64_t AnyopSizeRemainder(int64_t a, int64_t b) {
  if (AnyopNoSize(a, b) || b == 0) return ANYOP_NO_SIZE;
  if (b == -1) return 0;
  return a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
}

static inline int64_t AnyopSizeMin(int64_t a, int64_t b) {
  return AnyopNoSize(a, b) ? ANYOP_NO_SIZE : a < b ? a : b;
}

static inline int64_t AnyopSizeMax(int64_t a, int64_t b) {
  return AnyopNoSize(a, b) ? ANYOP_NO_SIZE : a > b ? a : b;
}

#endif /* ANYOP_SIZE_MATH_H_ */
