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

// What a thread carries into a tile[k][row] of `width` rows, those from `begin` on of `rows`. Threads
// go along what is one in memory. A GPU has the next ones on their way while it works on a tile.
#define CARRY(name, width, begin, rows, row_step, k_step)                                   \
  const bool name##_lies = (k_step) == 1;                                                   \
  const int name##_row0 = name##_lies ? t / DEPTH : t % width;                               \
  const int name##_k0 = name##_lies ? t % DEPTH : t / width;                                 \
  const int name##_rows = name##_lies ? THREADS / DEPTH : 0;                                \
  const int name##_ks = name##_lies ? 0 : THREADS / width;                                  \
  const long name##_left = (rows) - (begin) - name##_row0;                                   \
  const long name##_turn = name##_rows * (row_step) + name##_ks * (k_step);                 \
  long name##_at = ((begin) + name##_row0) * (row_step) + name##_k0 * (k_step);               \
  REAL name##_next[width * DEPTH / THREADS];
#define READ(name, width, first, k_step)                                                    \
  for (int i = 0; i < width * DEPTH / THREADS; ++i) {                                       \
    const bool inside = i * name##_rows < name##_left && (first) + name##_k0 + i * name##_ks < K; \
    name##_next[i] = inside ? LOAD(name, name##_at + i * name##_turn) : 0;                  \
  }                                                                                         \
  name##_at += DEPTH * (k_step);
#define PUT(name, width)                                                                    \
  for (int i = 0; i < width * DEPTH / THREADS; ++i)                                         \
    name##_tile[name##_k0 + i * name##_ks][name##_row0 + i * name##_rows] = name##_next[i];

// Element (m, k) of a lies at m * a_m + k * a_k, (k, n) of b at k * b_k + n * b_n.
inline void product(__global const JOIN(type_, a_t) *a, long a_m, long a_k,
                    __global const JOIN(type_, b_t) *b, long b_k, long b_n, long M, long N, long K,
                    __local REAL (*a_tile)[ROWS + 4], __local REAL (*b_tile)[COLUMNS + 4],
                    REAL4 (*sums)[2]) {
  const int t = (int)get_local_id(0), row = t / 16 * 4, column = t % 16 * 4;
  const long m = (long)get_group_id(0) * ROWS, n = (long)get_group_id(1) * COLUMNS;
  CARRY(a, ROWS, m, M, a_m, a_k)
  CARRY(b, COLUMNS, n, N, b_n, b_k)
  for (int i = 0; i < 4; ++i) sums[i][0] = sums[i][1] = 0;
  if (!ON_CPU) {
    READ(a, ROWS, 0, a_k)
    READ(b, COLUMNS, 0, b_k)
  }
  for (long first = 0; first < K; first += DEPTH) {
    if (ON_CPU) {
      READ(a, ROWS, first, a_k)
      READ(b, COLUMNS, first, b_k)
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    PUT(a, ROWS)
    PUT(b, COLUMNS)
    barrier(CLK_LOCAL_MEM_FENCE);
    if (!ON_CPU && first + DEPTH < K) {
      READ(a, ROWS, first + DEPTH, a_k)
      READ(b, COLUMNS, first + DEPTH, b_k)
    }
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
