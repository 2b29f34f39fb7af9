// SPDX-License-Identifier: Apache-2.0
// silu in OpenCL C: one element a thread, computed in REAL.
__kernel void silu(TENSOR(x), TENSOR(out), const Layout places) {
  BEGIN(x);
  BEGIN(out);
  const long i = (long)get_global_id(0);
  if (i >= places.numel) return;
  const REAL v = LOAD(x, at(&places, 1, i));
  STORE(out, at(&places, 0, i), v / (1 + exp(-v)));
}
