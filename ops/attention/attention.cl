// SPDX-License-Identifier: Apache-2.0
// attention in OpenCL C: a block of 256 threads has 16 queries of a head and up to 128 features of
// their results. Keys come KEYS at a time, with the maximum and the sum that go on. A key that a
// query may not see by its place is not read for it. Sums in REAL.
#define QUERIES 16
#define DEPTH 32
#define FEATURES 128
#define KEYS 64
#define LANES (ON_CPU ? 1 : 16)  // threads of a query
#define is_bool_bool 1
#define is_bool_float32 0
#define is_bool_float16 0
#define is_bool_bfloat16 0
#define is_bool_float64 0

#if HAS_mask
#define MASK_AT(t) LOAD(mask, (t) * column_step(&of_queries, 2))
#define MASKED(t) (JOIN(is_bool_, mask_t) ? (MASK_AT(t) != 0 ? 0 : -INFINITY) : MASK_AT(t))
#else
#define MASKED(t) 0
#endif
// Of key t; value is its product with the query.
#define MAKE_SCORE(value, t)                                \
  value = D == 0 ? 0 : value * factor;                      \
  if (softcap > 0) value = softcap * tanh(value / softcap); \
  value += MASKED(t);                                       \
  if (HAS_alibi_slopes) value -= slope * fabs((REAL)(s + offset - (t)));

__kernel void attention(TENSOR(q), TENSOR(k), TENSOR(v), TENSOR(mask), TENSOR(sinks),
                        TENSOR(alibi_slopes), TENSOR(out), const REAL scale, const int is_plain,
                        const uchar causal, const long offset, const long window_left,
                        const long window_right, const REAL softcap, const long H, const long G,
                        const long S, const long T, const long D, const long E,
                        const Layout of_queries, const Layout of_keys) {
#if !ON_CPU
  __local REAL q_part[DEPTH][QUERIES], k_part[DEPTH][KEYS + 1], scores[QUERIES][KEYS + 1];
#endif
  BEGIN(q);
  BEGIN(k);
  BEGIN(v);
  BEGIN(mask);
  BEGIN(sinks);
  BEGIN(alibi_slopes);
  BEGIN(out);
  const int me = (int)get_local_id(0), own = me / LANES, lane = me % LANES;
  const long s0 = (long)get_group_id(0) * QUERIES, e0 = (long)get_group_id(1) * FEATURES;
  const bool is_there = own < QUERIES && s0 + own < S;
  if (ON_CPU && !is_there) return;  // a thread has a query, nothing is shared, and none waits
  const long head = (long)get_group_id(2), h = head % H, group = head / H * G + h / (H / G);
  const long s = min(s0 + own, S - 1);
  q += matrix_at(&of_queries, 0, head);
  out += matrix_at(&of_queries, 1, head);
  mask += HAS_mask ? matrix_at(&of_queries, 2, head) + s * row_step(&of_queries, 2) : 0;
  k += matrix_at(&of_keys, 0, group);
  v += matrix_at(&of_keys, 1, group);
  const REAL factor = D == 0 ? 0 : is_plain ? 1 / sqrt((REAL)D) : scale;
  const REAL slope = HAS_alibi_slopes ? LOAD(alibi_slopes, h) : 0;

  // Keys [low, high) lie where query s may see them.
  const long low = window_left < 0 ? 0 : clamp(s + offset - window_left, 0L, T);
  const long ahead = causal ? 0 : window_right;  // a window to the right takes no key from causal
  const long high = !is_there ? 0 : ahead < 0 ? T : clamp(s + offset + ahead + 1, 0L, T);
#if ON_CPU
  const int own_features = (int)min(E - e0, (long)FEATURES);
#else
  const int own_features = FEATURES / LANES;
#endif
  REAL most = -INFINITY, total = 0, sums[FEATURES / LANES];
  for (int i = 0; i < own_features; ++i) sums[i] = 0;

#if ON_CPU
  q += s * row_step(&of_queries, 0);
  v += e0;
  for (long t0 = low; t0 < high; t0 += KEYS) {
    REAL scores[KEYS], higher = most;
    const int count = (int)min(high - t0, (long)KEYS);
    for (int i = 0; i < count; ++i) {
      const long row = (t0 + i) * row_step(&of_keys, 0);
      REAL8 eight = 0;
      long d = 0;
      for (; d + 8 <= D; d += 8) eight += EIGHT(q, d) * EIGHT(k, row + d);
      REAL value = sum_of_eight(eight);
      for (; d < D; ++d) value += LOAD(q, d) * LOAD(k, row + d);
      MAKE_SCORE(value, t0 + i)
      scores[i] = value;
      higher = fmax(higher, value);
    }
    const REAL base = higher == -INFINITY ? 0 : higher, shrunk = exp(most - base);
    most = higher;
    total *= shrunk;
    for (int e = 0; e < own_features; ++e) sums[e] *= shrunk;
    for (int i = 0; i < count; ++i) {
      const long row = (t0 + i) * row_step(&of_keys, 1);
      const REAL weight = exp(scores[i] - base);
      total += weight;
      for (int e = 0; e < own_features; ++e) sums[e] += weight * LOAD(v, row + e);
    }
  }
#else
  // Those of the block are within [from, to).
  const long last = min(s0 + QUERIES, S) - 1;
  const long from = window_left < 0 ? 0 : clamp(s0 + offset - window_left, 0L, T);
  const long to = ahead < 0 ? T : clamp(last + offset + ahead + 1, 0L, T);
  for (long t0 = from; t0 < to; t0 += KEYS) {
    REAL score[KEYS / LANES];
    for (int i = 0; i < KEYS / LANES; ++i) score[i] = 0;
    for (long d0 = 0; d0 < D; d0 += DEPTH) {
      barrier(CLK_LOCAL_MEM_FENCE);
      for (int i = me; i < DEPTH * QUERIES; i += THREADS) {
        const long row = s0 + i / DEPTH, d = d0 + i % DEPTH;
        q_part[i % DEPTH][i / DEPTH] =
            row < S && d < D ? LOAD(q, row * row_step(&of_queries, 0) + d) : 0;
      }
      for (int i = me; i < DEPTH * KEYS; i += THREADS) {
        const long row = t0 + i / DEPTH, d = d0 + i % DEPTH;
        k_part[i % DEPTH][i / DEPTH] =
            row < T && d < D ? LOAD(k, row * row_step(&of_keys, 0) + d) : 0;
      }
      barrier(CLK_LOCAL_MEM_FENCE);
      if (is_there) {
        for (int d = 0; d < DEPTH; ++d) {
          for (int i = 0; i < KEYS / LANES; ++i)
            score[i] += q_part[d][own] * k_part[d][lane + LANES * i];
        }
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = 0; i < KEYS / LANES; ++i) {
      const long t = t0 + lane + LANES * i;
      REAL value = -INFINITY;
      if (t >= low && t < high) {
        value = score[i];
        MAKE_SCORE(value, t)
      }
      scores[own][lane + LANES * i] = value;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const long begin = max(low, t0), end = min(high, min(t0 + KEYS, T));
    REAL higher = most;
    for (long t = begin; t < end; ++t) higher = fmax(higher, scores[own][t - t0]);
    const REAL base = higher == -INFINITY ? 0 : higher, shrunk = exp(most - base);
    most = higher;
    total *= shrunk;
    for (int i = 0; i < own_features; ++i) sums[i] *= shrunk;
    for (long t = begin; t < end; ++t) {
      const REAL weight = exp(scores[own][t - t0] - base);
      total += weight;
      for (int i = 0; i < own_features; ++i) {
        const long e = e0 + lane + LANES * i;
        if (e < E) sums[i] += weight * LOAD(v, t * row_step(&of_keys, 1) + e);
      }
    }
  }
#endif

  const bool is_empty = total == 0;  // a query that may attend nowhere
  REAL shrunk = 1;
  if (HAS_sinks && !is_empty) {
    const REAL sink = LOAD(sinks, h), higher = fmax(most, sink);
    shrunk = exp(most - higher);
    total = total * shrunk + exp(sink - higher);
  }
  if (!is_there) return;
  for (int i = 0; i < own_features; ++i) {
    const long e = e0 + lane + LANES * i;
    const REAL value = is_empty ? 0 : sums[i] * shrunk / total;
    if (e < E) STORE(out, s * row_step(&of_queries, 1) + e, value);
  }
}
