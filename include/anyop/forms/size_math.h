/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic of sizes in generated code: what overflows or divides by zero is ANYOP_NO_SIZE, and so
   is all that follows from it. C. */
#ifndef ANYOP_FORMS_SIZE_MATH_H_
#define ANYOP_FORMS_SIZE_MATH_H_

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

/* Truth values are 1 and 0. */
static inline int64_t AnyopSizeEqual(int64_t a, int64_t b) {
  return AnyopNoSize(a, b) ? ANYOP_NO_SIZE : a == b;
}

static inline int64_t AnyopSizeDifferent(int64_t a, int64_t b) {
  return AnyopNoSize(a, b) ? ANYOP_NO_SIZE : a != b;
}

static inline int64_t AnyopSizeLess(int64_t a, int64_t b) {
  return AnyopNoSize(a, b) ? ANYOP_NO_SIZE : a < b;
}

static inline int64_t AnyopSizeAtMost(int64_t a, int64_t b) {
  return AnyopNoSize(a, b) ? ANYOP_NO_SIZE : a <= b;
}

static inline int64_t AnyopSizeAnd(int64_t a, int64_t b) {
  if (a == ANYOP_NO_SIZE || a == 0) return a; /* b may have no size then */
  return b == ANYOP_NO_SIZE ? b : b != 0;
}

static inline int64_t AnyopSizeOr(int64_t a, int64_t b) {
  if (a == ANYOP_NO_SIZE || a != 0) return a == ANYOP_NO_SIZE ? a : 1;
  return b == ANYOP_NO_SIZE ? b : b != 0;
}

/* a where the condition holds, else b; the other one may have no size. */
static inline int64_t AnyopSizeChoose(int64_t condition, int64_t a, int64_t b) {
  return condition == ANYOP_NO_SIZE ? ANYOP_NO_SIZE : condition ? a : b;
}

/* 1 for 1 and less. */
static inline int64_t AnyopSizeNextPowerOfTwo(int64_t a) {
  if (a == ANYOP_NO_SIZE || a > INT64_C(1) << 62) return ANYOP_NO_SIZE;
  return a <= 1 ? 1 : INT64_C(1) << (64 - __builtin_clzll((unsigned long long)a - 1));
}

#endif /* ANYOP_FORMS_SIZE_MATH_H_ */
