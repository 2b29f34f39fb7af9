// SPDX-License-Identifier: Apache-2.0
// gelu in OpenCL C: one element a thread; by the normal distribution's tail, or by the logistic function,
// which lose nothing far from 0.
#if REAL_IS_DOUBLE
inline REAL exact(REAL v) { return v * erfc(v * -(REAL)0.70710678118654752440) / 2; }
#else
// NormalCdf of anyop/cpu/math.h: log2 of the tail is a polynomial; beyond 13.2 it is 0.
inline REAL exact(REAL v) {
  const REAL a = fmin(fabs(v), 13.2f);
  REAL p = 2.53976654e-5f;
  p = p * a - 0.000703394119f;
  p = p * a + 0.00787036209f;
  p = p * a - 0.0530978562f;
  p = p * a - 0.458994828f;
  p = p * a - 1.15113338f;
  p = p * a - 0.999999385f;
  const REAL tail = a < 13.2f ? exp2(p) : 0;
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
  if (i >= places.numel) return;
  const REAL v = LOAD(x, at(&places, 1, i));
  STORE(out, at(&places, 0, i), is_tanh ? by_tanh(v) : exact(v));
}
