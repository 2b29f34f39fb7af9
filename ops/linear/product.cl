// SPDX-License-Identifier: Apache-2.0
// linear and matmul in OpenCL C: a block of 256 threads makes 64 x 128 results, a thread 4 rows of two
// times 4 columns. 16 of k at a time lie in local memory, k by k; sums in REAL.
#define ROWS 64
#define COLUMNS 128
#define DEPTH 16

#ifdef weight_t  // linear: b is weight, transposed
#define a_t x_t
#define b_t weight_t
#endif

// `count` rows of `tile` lie at row_step; what is outside is 0. Threads go along what is one in memory.
#define FILL(tile, width, from, begin, rows, row_step, k_step)                       \
  for (int i = t; i < width * DEPTH; i += THREADS) {                                 \
    const int k = (k_step) == 1 ? i % DEPTH : i / width;                             \
    const int r = (k_step) == 1 ? i / DEPTH : i % width;                             \
    const bool inside = begin + r < rows && first + k < K;                           \
    tile[k][r] = inside ? LOAD(from, (begin + r) * (row_step) + (first + k) * (k_step)) : 0; \
  }

// Element (m, k) of a lies at m * a_m + k * a_k, (k, n) of b at k * b_k + n * b_n.
inline void product(__global const JOIN(type_, a_t) *a, long a_m, long a_k,
                    __global const JOIN(type_, b_t) *b, long b_k, long b_n, long M, long N, long K,
                    __local REAL (*a_tile)[ROWS + 4], __local REAL (*b_tile)[COLUMNS + 4],
                    REAL4 (*sums)[2]) {
  const int t = (int)get_local_id(0), row = t / 16 * 4, column = t % 16 * 4;
  const long m = (long)get_group_id(0) * ROWS, n = (long)get_group_id(1) * COLUMNS;
  for (int i = 0; i < 4; ++i) sums[i][0] = sums[i][1] = 0;
  for (long first = 0; first < K; first += DEPTH) {
    barrier(CLK_LOCAL_MEM_FENCE);
    FILL(a_tile, ROWS, a, m, M, a_m, a_k)
    FILL(b_tile, COLUMNS, b, n, N, b_n, b_k)
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (int k = 0; k < DEPTH; ++k) {
      const REAL4 four = *(__local const REAL4*)&a_tile[k][row];
      const REAL4 left = *(__local const REAL4*)&b_tile[k][column];
      const REAL4 right = *(__local const REAL4*)&b_tile[k][column + COLUMNS / 2];
      sums[0][0] += four.x * left, sums[0][1] += four.x * right;
      sums[1][0] += four.y * left, sums[1][1] += four.y * right;
      sums[2][0] += four.z * left, sums[2][1] += four.z * right;
      sums[3][0] += four.w * left, sums[3][1] += four.w * right;
    }
  }
}

// Writes what is inside; `more` is added, and may name n.
#define FINISH(more)                                                                      \
  for (int i = 0; i < 4; ++i) {                                                           \
    const long m = (long)get_group_id(0) * ROWS + (long)get_local_id(0) / 16 * 4 + i;     \
    for (int j = 0; j < 8; ++j) {                                                         \
      const REAL4 four = sums[i][j / 4];                                                  \
      const REAL sum = j % 4 == 0 ? four.x : j % 4 == 1 ? four.y : j % 4 == 2 ? four.z : four.w; \
      const long n = (long)get_group_id(1) * COLUMNS + (long)get_local_id(0) % 16 * 4 +   \
                     j / 4 * (COLUMNS / 2) + j % 4;                                       \
      if (m < M && n < N) STORE(out, m * N + n, sum + (more));                            \
    }                                                                                     \
  }

#ifdef weight_t
__kernel void linear(TENSOR(x), TENSOR(weight), TENSOR(bias), TENSOR(out), const long M,
                     const long N, const long K) {
  __local REAL a_tile[DEPTH][ROWS + 4] __attribute__((aligned(64)));
  __local REAL b_tile[DEPTH][COLUMNS + 4] __attribute__((aligned(64)));
  BEGIN(x);
  BEGIN(weight);
  BEGIN(bias);
  BEGIN(out);
  REAL4 sums[4][2];
  product(x, K, 1, weight, 1, K, M, N, K, a_tile, b_tile, sums);
  FINISH(HAS_bias ? LOAD(bias, n) : 0)
}
#else
__kernel void matmul(TENSOR(a), TENSOR(b), TENSOR(out), const long M, const long N, const long K,
                     const Layout matrices) {
  __local REAL a_tile[DEPTH][ROWS + 4] __attribute__((aligned(64)));
  __local REAL b_tile[DEPTH][COLUMNS + 4] __attribute__((aligned(64)));
  BEGIN(a);
  BEGIN(b);
  BEGIN(out);
  const long i = (long)get_group_id(2);
  a += matrix_at(&matrices, 1, i);
  b += matrix_at(&matrices, 2, i);
  out += i * M * N;
  REAL4 sums[4][2];
  product(a, row_step(&matrices, 1), column_step(&matrices, 1), b, row_step(&matrices, 2),
          column_step(&matrices, 2), M, N, K, a_tile, b_tile, sums);
  FINISH(0)
}
#endif
