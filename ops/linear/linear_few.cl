// SPDX-License-Identifier: Apache-2.0
// linear of few rows in OpenCL C, which reads weight once for each 8 or 4 rows. Sums in REAL, in one
// order.
#define REAL4 JOIN(REAL, 4)
#define REAL8 JOIN(REAL, 8)
#define COLUMNS 64

#define FOUR(name, i) \
  (REAL4)(LOAD(name, i), LOAD(name, (i) + 1), LOAD(name, (i) + 2), LOAD(name, (i) + 3))
#define EIGHT(name, i) (REAL8)(FOUR(name, i), FOUR(name, (i) + 4))

inline REAL sum_of_eight(REAL8 v) {
  const REAL4 four = v.lo + v.hi;
  return (four.x + four.y) + (four.z + four.w);
}

#if defined(__x86_64__) || defined(__aarch64__)
// On a CPU each of 64 threads makes a column, and the others of its block do nothing: nothing is
// shared, and no thread waits.
#define ROWS 8

__kernel void linear_few(TENSOR(x), TENSOR(weight), TENSOR(bias), TENSOR(out), const long M,
                         const long N, const long K) {
  BEGIN(x);
  BEGIN(weight);
  BEGIN(bias);
  BEGIN(out);
  const long n = (long)get_group_id(0) * COLUMNS + (long)get_local_id(0);
  if (get_local_id(0) >= COLUMNS || n >= N) return;
  weight += n * K;
  const REAL start = HAS_bias ? LOAD(bias, n) : 0;
  for (long m0 = 0; m0 < M; m0 += ROWS) {  // rows behind the last are the last
    REAL8 sums[ROWS];
    long row[ROWS], k = 0;
    for (int i = 0; i < ROWS; ++i) {
      sums[i] = 0;
      row[i] = min(m0 + i, M - 1) * K;
    }
    for (; k + 8 <= K; k += 8) {
      const REAL8 w = EIGHT(weight, k);
#pragma unroll
      for (int i = 0; i < ROWS; ++i) sums[i] += EIGHT(x, row[i] + k) * w;
    }
    for (; k < K; ++k) {
      for (int i = 0; i < ROWS; ++i) sums[i].s0 += LOAD(x, row[i] + k) * LOAD(weight, k);
    }
    for (int i = 0; i < ROWS; ++i)
      if (m0 + i < M) STORE(out, (m0 + i) * N + n, sum_of_eight(sums[i]) + start);
  }
}
#else
// Elsewhere a block of 256 threads makes 64 columns, 4 rows at a time; 8 threads share two columns, each
// with 8 of 64 k.
#define ROWS 4
#define LANES 8

__kernel void linear_few(TENSOR(x), TENSOR(weight), TENSOR(bias), TENSOR(out), const long M,
                         const long N, const long K) {
  __local REAL parts[THREADS][2 * ROWS];
  BEGIN(x);
  BEGIN(weight);
  BEGIN(bias);
  BEGIN(out);
  const int t = (int)get_local_id(0), pair = t / LANES, lane = t % LANES;
  const long first = (long)get_group_id(0) * COLUMNS;
  const long left = min(first + 2 * pair, N - 1) * K, right = min(first + 2 * pair + 1, N - 1) * K;
  for (long m0 = 0; m0 < M; m0 += ROWS) {
    REAL8 sums[ROWS][2];
    for (int i = 0; i < ROWS; ++i) sums[i][0] = sums[i][1] = 0;
    long k = 8 * lane;
    for (; k + 8 <= K; k += 8 * LANES) {
      const REAL8 a = EIGHT(weight, left + k), b = EIGHT(weight, right + k);
#pragma unroll
      for (int i = 0; i < ROWS; ++i) {
        const REAL8 row = EIGHT(x, min(m0 + i, M - 1) * K + k);
        sums[i][0] += row * a;
        sums[i][1] += row * b;
      }
    }
    for (const long end = min(k + 8, K); k < end; ++k) {  // less than eight are left
      for (int i = 0; i < ROWS; ++i) {
        const REAL row = LOAD(x, min(m0 + i, M - 1) * K + k);
        sums[i][0].s0 += row * LOAD(weight, left + k);
        sums[i][1].s0 += row * LOAD(weight, right + k);
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = 0; i < ROWS; ++i) {
      for (int j = 0; j < 2; ++j) {
        parts[t][2 * i + j] = sum_of_eight(sums[i][j]);
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const int i = t / COLUMNS, column = t % COLUMNS;
    const long m = m0 + i, n = first + column;
    if (i < ROWS && m < M && n < N) {
      REAL sum = 0;
      for (int l = 0; l < LANES; ++l) sum += parts[column / 2 * LANES + l][2 * i + column % 2];
      STORE(out, m * N + n, sum + (HAS_bias ? LOAD(bias, n) : 0));
    }
  }
}
#endif
