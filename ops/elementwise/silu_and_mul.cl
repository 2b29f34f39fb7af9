// SPDX-License-Identifier: Apache-2.0
// silu_and_mul in OpenCL C: one element of the result a thread.
__kernel void silu_and_mul(TENSOR(x), TENSOR(out), const long D, const Layout rows) {
  BEGIN(x);
  BEGIN(out);
  const long d = (long)get_global_id(0), r = (long)get_group_id(1);
  if (d >= D) return;
  const long from = at(&rows, 1, r) + d;
  const REAL gate = LOAD(x, from);
  STORE(out, at(&rows, 0, r) + d, gate / (1 + exp(-gate)) * LOAD(x, from + D));
}
