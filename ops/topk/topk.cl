// SPDX-License-Identifier: Apache-2.0
// topk in OpenCL C: a block of 256 threads a row, read once for each of the k: the first element that
// comes behind the last one. An element's place is a number that grows in the order of the results.
inline ulong place_of_float(float v) {
  const uint bits = as_uint(v);
  if (isnan(v)) return UINT_MAX;
  if (bits << 1 == 0) return 1u << 31;  // zeros are equal
  return bits >> 31 ? ~bits : bits | 1u << 31;
}
#define place_float32(p, i) place_of_float((p)[i])
#define place_float16(p, i) place_of_float((float)LOAD(p, i))
#define place_bfloat16(p, i) place_of_float((float)LOAD(p, i))
#define place_int32(p, i) (as_ulong((long)(p)[i]) ^ 1UL << 63)
#define place_int64(p, i) (as_ulong((p)[i]) ^ 1UL << 63)
#if REAL_IS_DOUBLE
inline ulong place_float64_of(double v) {
  const ulong bits = as_ulong(v);
  if (isnan(v)) return ULONG_MAX;
  if (bits << 1 == 0) return 1UL << 63;
  return bits >> 63 ? ~bits : bits | 1UL << 63;
}
#define place_float64(p, i) place_float64_of((p)[i])
#endif

__kernel void topk(TENSOR(x), TENSOR(values), TENSOR(indices), const long D, const long k,
                   const uchar largest) {
  __local ulong places[THREADS];
  __local long sources[THREADS];
  BEGIN(x);
  BEGIN(values);
  BEGIN(indices);
  const long r = (long)get_group_id(0);
  const int me = (int)get_local_id(0);
  ulong last = 0;
  long source = -1;
  for (long j = 0; j < k; ++j) {
    ulong best = 0;
    long from = D;
    for (long d = me; d < D; d += THREADS) {
      const ulong own = JOIN(place_, x_t)(x, r * D + d), place = largest ? ~own : own;
      const bool behind = source < 0 || place > last || (place == last && d > source);
      if (behind && (from == D || place < best)) {
        best = place;
        from = d;
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    places[me] = best;
    sources[me] = from;
    for (int n = THREADS / 2; n > 0; n /= 2) {
      barrier(CLK_LOCAL_MEM_FENCE);
      const int other = me < n ? me + n : me;
      const bool earlier = places[other] < places[me] ||
                           (places[other] == places[me] && sources[other] < sources[me]);
      if (me < n && sources[other] < D && (sources[me] == D || earlier)) {
        places[me] = places[other];
        sources[me] = sources[other];
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    last = places[0];
    source = sources[0];
    if (me == 0) {
      values[r * k + j] = x[r * D + source];
      indices[r * k + j] = source;
    }
  }
}
