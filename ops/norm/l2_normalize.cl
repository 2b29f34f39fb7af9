// SPDX-License-Identifier: Apache-2.0
// l2_normalize in OpenCL C: a block of 256 threads a row, held in registers or
// read twice; sums in REAL.
__kernel void l2_normalize(TENSOR(x), TENSOR(out), const long D, const REAL eps,
                           const Layout rows) {
  __local REAL part[THREADS];
  BEGIN(x);
  BEGIN(out);
  const long r = (long)get_group_id(0), from = at(&rows, 1, r), to = at(&rows, 0, r);
  if (CAN_HOLD(D)) {
    REAL8 held[TURNS], squares = 0;
    HOLD(held, x, from, D, 0);
    for (int j = 0; j < TURNS; ++j) squares += held[j] * held[j];
    const REAL norm = sqrt(sum_of_threads(sum_of_eight(squares), part));
    const REAL scale = 1 / (norm < eps ? eps : norm);
#define WRITE(load, store) EACH_TURN(j, d) if (d < D) store(out, to + d, held[j] * scale)
    BY_ADDRESS(IS_AT_16(out, to), WRITE)
    return;
  }
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
