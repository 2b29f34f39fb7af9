// SPDX-License-Identifier: Apache-2.0
// What stands before every `.cl`: element types by name, REAL for sums, tensors as buffer and
// offset, layouts. OpenCL C 1.2, without fp16: 16 bits are loaded to and stored from REAL by way of
// float.
#if REAL_IS_DOUBLE
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif

// A CPU runs the threads of a block one after another, those between two barriers in a loop: what
// they share costs more than what one of them does alone.
#if defined(__x86_64__) || defined(__aarch64__)
#define ON_CPU 1
#else
#define ON_CPU 0
#endif

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

typedef float type_float32;
typedef ushort type_float16, type_bfloat16, type_uint16;
typedef uchar type_bool, type_uint8, type_float8_e4m3fn, type_float8_e5m2;
typedef char type_int8;
typedef short type_int16;
typedef int type_int32;
typedef uint type_uint32;
typedef long type_int64;
typedef ulong type_uint64, type_complex64;
typedef struct {
  ulong low, high;
} type_complex128;
#define load_float32(p, i) ((REAL)(p)[i])
#define load_float16(p, i) ((REAL)vload_half(i, (__global const half*)(p)))
#define load_bfloat16(p, i) ((REAL)as_float((uint)(p)[i] << 16))
#define load_bool(p, i) ((REAL)((p)[i] != 0))
#define load_uint8(p, i) ((REAL)(p)[i])
#define load_int8(p, i) ((REAL)(p)[i])
#define load_int16(p, i) ((REAL)(p)[i])
#define load_int32(p, i) ((REAL)(p)[i])
#define load_int64(p, i) ((REAL)(p)[i])
#define store_float32(p, i, v) ((p)[i] = (float)(v))
#define store_float16(p, i, v) vstore_half_rte((float)(v), i, (__global half*)(p))
#define store_bfloat16(p, i, v) ((p)[i] = to_bfloat16((float)(v)))
#define store_bool(p, i, v) ((p)[i] = (v) != 0)
#define store_uint8(p, i, v) ((p)[i] = (uchar)(v))
#define store_int8(p, i, v) ((p)[i] = (char)(v))
#define store_int16(p, i, v) ((p)[i] = (short)(v))
#define store_int32(p, i, v) ((p)[i] = (int)(v))
#define store_int64(p, i, v) ((p)[i] = (long)(v))
#if REAL_IS_DOUBLE
typedef double type_float64;
#define load_float64(p, i) ((p)[i])
#define store_float64(p, i, v) ((p)[i] = (v))
#endif

// To the nearest, ties to even; a NaN stays one.
inline ushort to_bfloat16(float value) {
  const uint bits = as_uint(value);
  if (isnan(value)) return (ushort)(bits >> 16 | 64);
  return (ushort)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// The two parameters of a tensor, and its address; LOAD(x, i) and STORE(out, i, v) by its dtype.
#define TENSOR(name) __global JOIN(type_, name##_t) *from_##name, const ulong skip_##name
#define BEGIN(name)                    \
  __global JOIN(type_, name##_t)* name = \
      (__global JOIN(type_, name##_t)*)((__global char*)from_##name + skip_##name)
#define LOAD(name, i) JOIN(load_, name##_t)(name, i)
#define STORE(name, i, v) JOIN(store_, name##_t)(name, i, v)

// Eight elements that lie side by side, and the sum of eight.
#define REAL4 JOIN(REAL, 4)
#define REAL8 JOIN(REAL, 8)
#define FOUR(name, i) \
  (REAL4)(LOAD(name, i), LOAD(name, (i) + 1), LOAD(name, (i) + 2), LOAD(name, (i) + 3))
#define EIGHT(name, i) (REAL8)(FOUR(name, i), FOUR(name, (i) + 4))
inline REAL sum_of_eight(REAL8 v) {
  const REAL4 four = v.lo + v.hi;
  return (four.x + four.y) + (four.z + four.w);
}

// AnyopLayout of anyop/forms/device_image.h.
typedef struct {
  long ndim, numel;
  long shape[8];
  long strides[4][8];
} Layout;

// Where element i of the tensor in this place of layout(...) lies, counted in the first n dimensions.
inline long at_first(const Layout* layout, int place, long i, int n) {
  long where = 0;
  for (int d = n - 1; d > 0; --d) {
    where += i % layout->shape[d] * layout->strides[place][d];
    i /= layout->shape[d];
  }
  return n > 0 ? where + i * layout->strides[place][0] : 0;
}
inline long at(const Layout* layout, int place, long i) {
  const bool is_line = layout->ndim == 1;  // without the loop a compiler makes vectors of threads
  return is_line ? i * layout->strides[place][0] : at_first(layout, place, i, (int)layout->ndim);
}

// Whether element i of the first two tensors lies at i. No function: PoCL makes vectors of threads
// where this is plain to see.
#define TWO_LIE_IN_LINE(layout) \
  ((layout).ndim == 1 && (layout).strides[0][0] == 1 && (layout).strides[1][0] == 1)

// Of matrices(...): where matrix i begins, and the strides of its rows and columns.
inline long matrix_at(const Layout* layout, int place, long i) {
  return at_first(layout, place, i, (int)layout->ndim - 2);
}
inline long row_step(const Layout* layout, int place) {
  return layout->strides[place][layout->ndim - 2];
}
inline long column_step(const Layout* layout, int place) {
  return layout->strides[place][layout->ndim - 1];
}

// Sum and maximum over the 256 threads of a block, in the same order every time; part has 256.
#define THREADS 256
#if ON_CPU  // by one thread: a wait of all costs more than its loop
#define JOIN_HALVES(join)                                             \
  barrier(CLK_LOCAL_MEM_FENCE);                                       \
  for (int n = THREADS / 2; n > 0 && t == 0; n /= 2) {                \
    for (int i = 0; i < n; ++i) part[i] = join(part[i], part[i + n]); \
  }
#else
#define JOIN_HALVES(join)                            \
  for (int n = THREADS / 2; n > 0; n /= 2) {         \
    barrier(CLK_LOCAL_MEM_FENCE);                    \
    if (t < n) part[t] = join(part[t], part[t + n]); \
  }
#endif
#define OVER_THREADS(name, join)                     \
  inline REAL name(REAL value, __local REAL* part) { \
    const int t = (int)get_local_id(0);              \
    barrier(CLK_LOCAL_MEM_FENCE);                    \
    part[t] = value;                                 \
    JOIN_HALVES(join)                                \
    barrier(CLK_LOCAL_MEM_FENCE);                    \
    return part[0];                                  \
  }
#define PLUS(a, b) ((a) + (b))
OVER_THREADS(sum_of_threads, PLUS)
OVER_THREADS(max_of_threads, fmax)
