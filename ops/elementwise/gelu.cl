// SPDX-License-Identifier: Apache-2.0
// gelu in OpenCL C: one element a thread; by the normal distribution's tail, or by the logistic function,
// which lose nothing far from 0.
#if REAL_IS_DOUBLE
inline REAL exact(REAL v) { return v * erfc(v * -(REAL)0.70710678118654752440) / 2; }
#else
// 2 to the power of v, at most 0, in what a CPU's compiler makes vectors of; 0 below -126.
inline float power_of_two(float v) {
#if ON_CPU
  const float near = v > -126 ? v : -126;  // a NaN as well
  const float whole = near + 12582912.0f;  // 1.5 * 2^23: the sum is rounded to a whole number
  const float r = near - (whole - 12582912.0f);
  float p = 1.53533620e-4f;  // off by 2^-25 of 2^r at most, r from -0.5 to 0.5
  p = p * r + 1.33988750e-3f;
  p = p * r + 9.61843692e-3f;
  p = p * r + 5.55033237e-2f;
  p = p * r + 0.240226477f;
  p = p * r + 0.693147182f;
  p = p * r + 1.0f;
  return v > -126 ? p * as_float((as_int(whole) + 127) << 23) : 0;
#else
  return exp2(v);
#endif
}

// NormalCdf of anyop/cpu/math.h: log2 of the tail is a polynomial; beyond 13.2 it is 0.
inline REAL exact(REAL v) {
  const REAL far = fabs(v), a = far < 13.2f ? far : 13.2f;
  REAL p = 2.53976654e-5f;
  p = p * a - 0.000703394119f;
  p = p * a + 0.00787036209f;
  p = p * a - 0.0530978562f;
  p = p * a - 0.458994828f;
  p = p * a - 1.15113338f;
  p = p * a - 0.999999385f;
  const REAL tail = a < 13.2f ? power_of_two(p) : 0;
  return v * (v > 0 ? 1 - tail : tail);
}
#endif

// 1 + tanh(u) is 2 / (1 + exp(-2 u)).
inline REAL by_tanh(REAL v) {
  const REAL u = (REAL)1.5957691216057307118 * (v + (REAL)0.044715 * v * v * v);
  return v / (1 + exp(-u));
}

__kernel void gelu(TENSOR(x), TENSOR(out), const int is_tanh, const Layout places) {
  BEGIN(x);
  BEGIN(out);
  const long i = (long)get_global_id(0);
  if (TWO_LIE_IN_LINE(places) && !is_tanh) {  // what a CPU's compiler makes vectors of
    if (i < places.numel) STORE(out, i, exact(LOAD(x, i)));
    return;
  }
  if (i >= places.numel) return;
  const REAL v = LOAD(x, at(&places, 1, i));
  STORE(out, at(&places, 0, i), is_tanh ? by_tanh(v) : exact(v));
}
