// SPDX-License-Identifier: Apache-2.0
// mul in OpenCL C: one element a thread; broadcast inputs have strides of 0.
__kernel void mul(TENSOR(x), TENSOR(y), TENSOR(out), const Layout places) {
  BEGIN(x);
  BEGIN(y);
  BEGIN(out);
  const long i = (long)get_global_id(0);
  if (i >= places.numel) return;
  const REAL a = LOAD(x, at(&places, 1, i));
  const REAL b = LOAD(y, at(&places, 2, i));
  STORE(out, at(&places, 0, i), a * b);
}
