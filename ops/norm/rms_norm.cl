// SPDX-License-Identifier: Apache-2.0
// rms_norm in OpenCL C: a block of 256 threads a row, held in registers or read
// twice; sums in REAL.
__kernel void rms_norm(TENSOR(x), TENSOR(weight), TENSOR(out), const long D, const REAL eps,
                       const REAL weight_offset, const Layout rows) {
  __local REAL part[THREADS];
  BEGIN(x);
  BEGIN(weight);
  BEGIN(out);
  const long r = (long)get_group_id(0), from = at(&rows, 1, r), to = at(&rows, 0, r);
  if (CAN_HOLD(D)) {
    REAL8 held[TURNS], squares = 0;
    HOLD(held, x, from, D, 0);
    for (int j = 0; j < TURNS; ++j) squares += held[j] * held[j];
    const REAL scale = 1 / sqrt(sum_of_threads(sum_of_eight(squares), part) / D + eps);
#define WRITE(load, store)                                                     \
  EACH_TURN(j, d) if (d < D) {                                                 \
    const REAL8 w = weight_offset + (HAS_weight ? load(weight, d) : (REAL8)1); \
    store(out, to + d, held[j] * scale * w);                                   \
  }
    BY_ADDRESS(IS_AT_16(out, to) && (!HAS_weight || IS_AT_16(weight, 0)), WRITE)
    return;
  }
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
