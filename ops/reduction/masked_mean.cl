// SPDX-License-Identifier: Apache-2.0
// masked_mean in OpenCL C: one feature of a sequence a thread; 64 tokens at a time are summed.
__kernel void masked_mean(TENSOR(x), TENSOR(mask), TENSOR(out), const long B, const long T,
                          const long D) {
  BEGIN(x);
  BEGIN(mask);
  BEGIN(out);
  const long i = (long)get_global_id(0);
  if (i >= B * D) return;
  const long b = i / D, begin = b * T * D + i % D;
  REAL whole = 0;
  long count = 0;
  for (long t = 0; t < T;) {
    REAL part = 0;
    for (const long end = min(t + 64, T); t < end; ++t) {
      if (LOAD(mask, b * T + t) == 0) continue;
      part += LOAD(x, begin + t * D);
      ++count;
    }
    whole += part;
  }
  STORE(out, i, whole / max(count, 1L));
}
