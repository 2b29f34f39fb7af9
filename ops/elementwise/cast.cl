// SPDX-License-Identifier: Apache-2.0
// cast in OpenCL C: one element a thread; whole numbers as long, others as REAL.
#define whole_float32 0
#define whole_float16 0
#define whole_bfloat16 0
#define whole_float64 0
#define whole_bool 1
#define whole_uint8 1
#define whole_int8 1
#define whole_int16 1
#define whole_int32 1
#define whole_int64 1
#define IS_WHOLE(name) JOIN(whole_, name##_t)

__kernel void cast(TENSOR(x), TENSOR(out), const Layout places) {
  BEGIN(x);
  BEGIN(out);
  const long i = (long)get_global_id(0);
  if (i >= places.numel) return;
  const long from = at(&places, 1, i);
#if IS_WHOLE(x)
  const long v = x[from];
#else
  const REAL v = LOAD(x, from);
#endif
  STORE(out, at(&places, 0, i), v);
}
