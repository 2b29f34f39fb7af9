// SPDX-License-Identifier: Apache-2.0
// layer_norm and native_layer_norm in OpenCL C: a block of 256 threads a row, held in
// registers or read three times: mean, variance, result; sums in REAL.
#ifdef mean_t
#define STATISTICS TENSOR(mean), TENSOR(rstd),
#else
#define STATISTICS
#endif

__kernel void layer_norm(TENSOR(x), TENSOR(weight), TENSOR(bias), TENSOR(out),
                         STATISTICS const long D, const REAL eps, const REAL weight_offset,
                         const Layout rows) {
  __local REAL part[THREADS];
  BEGIN(x);
  BEGIN(weight);
  BEGIN(bias);
  BEGIN(out);
  const long r = (long)get_group_id(0), from = at(&rows, 1, r), to = at(&rows, 0, r);
  const long first = (long)get_local_id(0);
  const bool holds = CAN_HOLD(D);
  REAL8 held[TURNS];
  REAL sum = 0;
  if (holds) {
    HOLD(held, x, from, D, 0);
    for (int j = 0; j < TURNS; ++j) sum += sum_of_eight(held[j]);
  } else {
    for (long d = first; d < D; d += THREADS) sum += LOAD(x, from + d);
  }
  const REAL centre = sum_of_threads(sum, part) / max(D, 1L);
  sum = 0;
  if (holds) {
    EACH_TURN(j, d) {
      held[j] -= centre;
      if (d < D) sum += sum_of_eight(held[j] * held[j]);
    }
  } else {
    for (long d = first; d < D; d += THREADS) {
      const REAL v = LOAD(x, from + d) - centre;
      sum += v * v;
    }
  }
  const REAL scale = 1 / sqrt(sum_of_threads(sum, part) / max(D, 1L) + eps);
#ifdef mean_t
  BEGIN(mean);
  BEGIN(rstd);
  if (first == 0) {
    STORE(mean, r, centre);
    STORE(rstd, r, scale);
  }
#endif
  if (holds) {
#define WRITE(load, store)                                                     \
  EACH_TURN(j, d) if (d < D) {                                                 \
    const REAL8 w = weight_offset + (HAS_weight ? load(weight, d) : (REAL8)1); \
    const REAL8 b = HAS_bias ? load(bias, d) : (REAL8)0;                       \
    store(out, to + d, held[j] * scale * w + b);                               \
  }
    BY_ADDRESS(IS_AT_16(out, to) && (!HAS_weight || IS_AT_16(weight, 0)) &&
                   (!HAS_bias || IS_AT_16(bias, 0)),
               WRITE)
    return;
  }
  for (long d = first; d < D; d += THREADS) {
    const REAL w = weight_offset + (HAS_weight ? LOAD(weight, d) : 1);
    const REAL b = HAS_bias ? LOAD(bias, d) : 0;
    STORE(out, to + d, (LOAD(x, from + d) - centre) * scale * w + b);
  }
}
