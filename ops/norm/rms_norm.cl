// SPDX-License-Identifier: Apache-2.0
// rms_norm in OpenCL C: a block of 256 threads a row, read twice; sums in REAL.
__kernel void rms_norm(TENSOR(x), TENSOR(weight), TENSOR(out), const long D, const REAL eps,
                       const REAL weight_offset, const Layout rows) {
  __local REAL part[THREADS];
  BEGIN(x);
  BEGIN(weight);
  BEGIN(out);
  const long r = (long)get_group_id(0), from = at(&rows, 1, r), to = at(&rows, 0, r);
  REAL sum = 0;
  for (long d = (long)get_local_id(0); d < D; d += THREADS) {
    const REAL v = LOAD(x, from + d);
    sum += v * v;
  }
  const REAL scale = 1 / sqrt(sum_of_threads(sum, part) / D + eps);
  for (long d = (long)get_local_id(0); d < D; d += THREADS) {
    const REAL w = weight_offset + (HAS_weight ? LOAD(weight, d) : 1);
    STORE(out, to + d, LOAD(x, from + d) * scale * w);
  }
}
