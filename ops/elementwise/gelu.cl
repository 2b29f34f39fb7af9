// SPDX-License-Identifier: Apache-2.0
// gelu in OpenCL C: one element a thread; by erfc, or by the logistic function, which lose nothing in
// the tails.
inline REAL exact(REAL v) { return v * erfc(v * -(REAL)0.70710678118654752440) / 2; }

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
