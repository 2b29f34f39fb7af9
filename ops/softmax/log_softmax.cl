// SPDX-License-Identifier: Apache-2.0
// log_softmax in OpenCL C: a block of 256 threads a row of dimension dim, held in registers or
// read three times: maximum, sum, result; sums in REAL.
__kernel void log_softmax(TENSOR(x), TENSOR(out), const Layout split) {
  __local REAL part[THREADS];
  BEGIN(x);
  BEGIN(out);
  const long N = split.shape[1], inner = split.shape[2], first = (long)get_local_id(0);
  if (inner == 1 && CAN_HOLD(N)) {
    for (long r = (long)get_group_id(0); r < split.shape[0]; r += (long)get_num_groups(0)) {
      const long begin = r * N;
      REAL8 held[TURNS];
      REAL most = -INFINITY, sum = 0;
      HOLD(held, x, begin, N, -INFINITY);
      for (int j = 0; j < TURNS; ++j) most = fmax(most, max_of_eight(held[j]));
      most = max_of_threads(most, part);
      for (int j = 0; j < TURNS; ++j) sum += sum_of_eight(EXP_FOR(out, held[j] -= most));
      const REAL whole = log(sum_of_threads(sum, part));
#define WRITE(load, store) EACH_TURN(j, d) if (d < N) store(out, begin + d, held[j] - whole)
      BY_ADDRESS(IS_AT_16(out, begin), WRITE)
    }
    return;
  }
  for (long r = (long)get_group_id(0); r < split.shape[0] * inner; r += (long)get_num_groups(0)) {
    const long begin = r / inner * N * inner + r % inner;
    REAL most = -INFINITY, sum = 0;
    for (long n = first; n < N; n += THREADS) most = fmax(most, LOAD(x, begin + n * inner));
    most = max_of_threads(most, part);
    for (long n = first; n < N; n += THREADS) sum += exp(LOAD(x, begin + n * inner) - most);
    const REAL whole = log(sum_of_threads(sum, part));
    for (long n = first; n < N; n += THREADS)
      STORE(out, begin + n * inner, LOAD(x, begin + n * inner) - most - whole);
  }
}
