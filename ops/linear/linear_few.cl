// SPDX-License-Identifier: Apache-2.0
// linear of few rows in OpenCL C, which reads weight once for each 5 or 4 rows. Sums in REAL, in
// one order.
#define COLUMNS 64

#if ON_CPU
// A thread makes WIDE columns, and the others of its block do nothing: nothing is shared, and no
// thread waits.
#if defined(__AVX512F__)
#define WIDE 4  // 20 sums of eight are held
#else
#define WIDE 2
#endif

// The results of `count` rows, from m on.
#define SOME_ROWS(count)                                                           \
  {                                                                                \
    REAL8 sums[count][WIDE], w[WIDE];                                              \
    long k = 0;                                                                    \
    for (int i = 0; i < count; ++i)                                                \
      for (int j = 0; j < WIDE; ++j) sums[i][j] = 0;                               \
    for (; k + 8 <= K; k += 8) {                                                   \
      ALL for (int j = 0; j < WIDE; ++j) w[j] = EIGHT(weight, column[j] + k);      \
      ALL for (int i = 0; i < count; ++i) {                                        \
        const REAL8 row = EIGHT(x, (m + i) * K + k);                               \
        ALL for (int j = 0; j < WIDE; ++j) sums[i][j] += row * w[j];               \
      }                                                                            \
    }                                                                              \
    for (; k < K; ++k) {                                                           \
      for (int i = 0; i < count; ++i)                                              \
        for (int j = 0; j < WIDE; ++j)                                             \
          sums[i][j].s0 += LOAD(x, (m + i) * K + k) * LOAD(weight, column[j] + k); \
    }                                                                              \
    for (int i = 0; i < count; ++i)                                                \
      for (int j = 0; j < WIDE && n + j < N; ++j)                                  \
        STORE(out, (m + i) * N + n + j,                                            \
              sum_of_eight(sums[i][j]) + (HAS_bias ? LOAD(bias, n + j) : 0));      \
    m += count;                                                                    \
  }
#define ALL _Pragma("unroll")

__kernel void linear_few(TENSOR(x), TENSOR(weight), TENSOR(bias), TENSOR(out), const long M,
                         const long N, const long K) {
  BEGIN(x);
  BEGIN(weight);
  BEGIN(bias);
  BEGIN(out);
  const long n = (long)get_group_id(0) * COLUMNS + (long)get_local_id(0) * WIDE;
  if (get_local_id(0) >= COLUMNS / WIDE || n >= N) return;
  long column[WIDE], m = 0;
  for (int j = 0; j < WIDE; ++j) column[j] = min(n + j, N - 1) * K;
  while (m + 5 <= M) SOME_ROWS(5)
  if (m + 3 <= M) SOME_ROWS(3)
  if (m + 2 <= M) SOME_ROWS(2)
  if (m < M) SOME_ROWS(1)
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
