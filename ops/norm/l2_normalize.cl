// SPDX-License-Identifier: Apache-2.0
// l2_normalize in OpenCL C: a block of 256 threads a row, read twice; sums in REAL.
__kernel void l2_normalize(TENSOR(x), TENSOR(out), const long D, const REAL eps,
                           const Layout rows) {
  __local REAL part[THREADS];
  BEGIN(x);
  BEGIN(out);
  const long r = (long)get_group_id(0), from = at(&rows, 1, r), to = at(&rows, 0, r);
  REAL sum = 0;
  for (long d = (long)get_local_id(0); d < D; d += THREADS) {
    const REAL v = LOAD(x, from + d);
    sum += v * v;
  }
  const REAL norm = sqrt(sum_of_threads(sum, part));
  const REAL scale = 1 / (norm < eps ? eps : norm);  // a NaN stays one
  for (long d = (long)get_local_id(0); d < D; d += THREADS)
    STORE(out, to + d, LOAD(x, from + d) * scale);
}
