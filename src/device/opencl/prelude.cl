// SPDX-License-Identifier: Apache-2.0
// What stands before every `.cl`: element types by name, REAL for sums, tensors as buffer and
// offset, layouts. OpenCL C 1.2, without fp16: 16 bits are loaded to and stored from REAL by way of
// float. NVIDIA_MAJOR is that of NVIDIA's compute capability, elsewhere 0.
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
#if NVIDIA_MAJOR >= 8
inline uint two_bfloat16(float low, float high) {
  uint pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
#else
inline uint bfloat16_up(float value) {  // in the upper half
  const uint bits = as_uint(value);
  return isnan(value) ? bits | 0x400000 : bits + 0x7fff + (bits >> 16 & 1);
}
inline uint two_bfloat16(float low, float high) {
  return bfloat16_up(low) >> 16 | (bfloat16_up(high) & 0xffff0000);
}
#endif
inline ushort to_bfloat16(float value) { return (ushort)two_bfloat16(value, 0); }

// The two parameters of a tensor, and its address; LOAD(x, i) and STORE(out, i, v) by its dtype.
#define TENSOR(name) __global JOIN(type_, name##_t) *from_##name, const ulong skip_##name
#define BEGIN(name)                    \
  __global JOIN(type_, name##_t)* name = \
      (__global JOIN(type_, name##_t)*)((__global char*)from_##name + skip_##name)
#define LOAD(name, i) JOIN(load_, name##_t)(name, i)
#define STORE(name, i, v) JOIN(store_, name##_t)(name, i, v)

#define THREADS 256  // of a block

// Eight elements that lie side by side, their sum and their maximum.
#define REAL4 JOIN(REAL, 4)
#define REAL8 JOIN(REAL, 8)
#define FOUR(name, i) \
  (REAL4)(LOAD(name, i), LOAD(name, (i) + 1), LOAD(name, (i) + 2), LOAD(name, (i) + 3))
#define EIGHT(name, i) (REAL8)(FOUR(name, i), FOUR(name, (i) + 4))
inline REAL sum_of_eight(REAL8 v) {
  const REAL4 four = v.lo + v.hi;
  return (four.x + four.y) + (four.z + four.w);
}
inline REAL max_of_eight(REAL8 v) {
  const REAL4 four = fmax(v.lo, v.hi);
  return fmax(fmax(four.x, four.y), fmax(four.z, four.w));
}

// The same at once, of an address of 16 bytes: LOAD8(x, i) and STORE8(out, i, v).
#define TO_REAL8 JOIN(convert_, REAL8)
inline float8 floats8(uint4 bits) {
  return as_float8((uint8)(bits.x << 16, bits.x & 0xffff0000, bits.y << 16, bits.y & 0xffff0000,
                           bits.z << 16, bits.z & 0xffff0000, bits.w << 16, bits.w & 0xffff0000));
}
inline uint4 bfloat16s(float8 v) {
  return (uint4)(two_bfloat16(v.s0, v.s1), two_bfloat16(v.s2, v.s3), two_bfloat16(v.s4, v.s5),
                 two_bfloat16(v.s6, v.s7));
}
#define load8_float32(p, i) \
  TO_REAL8((float8)(*(__global const float4*)((p) + (i)), *(__global const float4*)((p) + (i) + 4)))
#define load8_float16(p, i) TO_REAL8(vloada_half8(0, (__global const half*)((p) + (i))))
#define load8_bfloat16(p, i) TO_REAL8(floats8(*(__global const uint4*)((p) + (i))))
inline void store8_float32_at(__global float* p, float8 v) {
  *(__global float4*)p = v.lo;
  *(__global float4*)(p + 4) = v.hi;
}
#define store8_float32(p, i, v) store8_float32_at((p) + (i), convert_float8(v))
#define store8_float16(p, i, v) vstorea_half8_rte(convert_float8(v), 0, (__global half*)((p) + (i)))
#define store8_bfloat16(p, i, v) (*(__global uint4*)((p) + (i)) = bfloat16s(convert_float8(v)))
#if REAL_IS_DOUBLE
#define load8_float64(p, i)                                                                    \
  ((double8)(*(__global const double2*)((p) + (i)), *(__global const double2*)((p) + (i) + 2), \
             *(__global const double2*)((p) + (i) + 4),                                        \
             *(__global const double2*)((p) + (i) + 6)))
inline void store8_float64_at(__global double* p, double8 v) {
  *(__global double2*)p = v.s01;
  *(__global double2*)(p + 2) = v.s23;
  *(__global double2*)(p + 4) = v.s45;
  *(__global double2*)(p + 6) = v.s67;
}
#define store8_float64(p, i, v) store8_float64_at((p) + (i), v)
#endif
// Powers of e for results of this dtype. NVIDIA's ex2.approx is off by two units in the last place of
// a float, and takes one instruction.
#if NVIDIA_MAJOR
inline float near_exp2(float v) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(v));
  return power;
}
inline float8 near_exp(float8 v) {
  const float8 log2 = v * M_LOG2E_F;
  return (float8)(near_exp2(log2.s0), near_exp2(log2.s1), near_exp2(log2.s2), near_exp2(log2.s3),
                  near_exp2(log2.s4), near_exp2(log2.s5), near_exp2(log2.s6), near_exp2(log2.s7));
}
#define exp_for_float16(v) near_exp(v)
#else
#define exp_for_float16(v) exp(v)
#endif
#define exp_for_bfloat16(v) exp_for_float16(v)
#define exp_for_float32(v) exp(v)
#define exp_for_float64(v) exp(v)
#define EXP_FOR(name, v) JOIN(exp_for_, name##_t)(v)

#define LOAD8(name, i) JOIN(load8_, name##_t)(name, i)
#define STORE8(name, i, v) JOIN(store8_, name##_t)(name, i, v)
#define IS_AT_16(name, i) ((ulong)((name) + (i)) % 16 == 0)
#define STORE_EIGHT(name, i, v)                                                                 \
  {                                                                                             \
    const REAL8 all = v;                                                                        \
    STORE(name, i, all.s0), STORE(name, (i) + 1, all.s1), STORE(name, (i) + 2, all.s2);         \
    STORE(name, (i) + 3, all.s3), STORE(name, (i) + 4, all.s4), STORE(name, (i) + 5, all.s5);   \
    STORE(name, (i) + 6, all.s6), STORE(name, (i) + 7, all.s7);                                 \
  }
// body(load, store) as addresses are.
#define BY_ADDRESS(is_at_16, body) \
  if (is_at_16) {                  \
    body(LOAD8, STORE8);           \
  } else {                         \
    body(EIGHT, STORE_EIGHT);      \
  }

// A row of D elements that the threads of a block hold in registers: thread t has elements
// 8 * (t + j * THREADS) and seven more of each turn j. A CPU has no room for it: what its threads
// hold lies in memory. No load waits for another one: those behind the row read its beginning.
#define TURNS 4
#define CAN_HOLD(D) (!ON_CPU && (D) > 0 && (D) % 8 == 0 && (D) <= 8 * THREADS * TURNS)
#define EACH_TURN(j, d) \
  for (int j = 0, d = 8 * (int)get_local_id(0); j < TURNS; ++j, d += 8 * THREADS)
#define HOLD(held, name, from, D, behind)                                               \
  if (IS_AT_16(name, from)) {                                                           \
    EACH_TURN(j, d) held[j] = LOAD8(name, (from) + (d < (D) ? d : 0));                  \
  } else {                                                                              \
    EACH_TURN(j, d) held[j] = EIGHT(name, (from) + (d < (D) ? d : 0));                  \
  }                                                                                     \
  EACH_TURN(j, d) held[j] = d < (D) ? held[j] : (REAL8)(behind)

// out[i] = value for four elements a thread, of which all are read before one is written; i is
// named by value.
#define FOUR_EACH(out, layout, i, value)                                            \
  REAL values[4];                                                                   \
  const long first = (long)get_group_id(0) * (4 * THREADS) + (long)get_local_id(0); \
  for (int j = 0; j < 4; ++j) {                                                     \
    const long i = first + j * THREADS;                                             \
    values[j] = i < (layout).numel ? (value) : 0;                                   \
  }                                                                                 \
  for (int j = 0; j < 4; ++j) {                                                     \
    const long i = first + j * THREADS;                                             \
    if (i < (layout).numel) STORE(out, at(&(layout), 0, i), values[j]);             \
  }

// AnyopLayout of anyop/forms/device_image.h.
typedef struct {
  long ndim, numel;
  long shape[8];
  long strides[4][8];
} Layout;

// Where element i of the tensor in this place of layout(...) lies, counted in the first n
// dimensions.
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

// Sum and maximum over the threads of a block, in the same order every time; part has 256.
#if ON_CPU  // by one thread: a wait of all costs more than its loop
#define JOIN_PARTS(join)                                              \
  for (int n = THREADS / 2; n > 0 && t == 0; n /= 2) {                \
    for (int i = 0; i < n; ++i) part[i] = join(part[i], part[i + n]); \
  }                                                                   \
  barrier(CLK_LOCAL_MEM_FENCE);                                       \
  return part[0];
#else  // by sixteen, and by each the sixteen: what costs is waiting
#define JOIN_PARTS(join)                                                          \
  if (t < 16) {                                                                   \
    for (int i = 1; i < THREADS / 16; ++i) value = join(value, part[t + 16 * i]); \
    part[t] = value;                                                              \
  }                                                                               \
  barrier(CLK_LOCAL_MEM_FENCE);                                                   \
  value = part[0];                                                                \
  for (int i = 1; i < 16; ++i) value = join(value, part[i]);                      \
  return value;
#endif
#define OVER_THREADS(name, join)                     \
  inline REAL name(REAL value, __local REAL* part) { \
    const int t = (int)get_local_id(0);              \
    barrier(CLK_LOCAL_MEM_FENCE);                    \
    part[t] = value;                                 \
    barrier(CLK_LOCAL_MEM_FENCE);                    \
    JOIN_PARTS(join)                                 \
  }
#define PLUS(a, b) ((a) + (b))
OVER_THREADS(sum_of_threads, PLUS)
OVER_THREADS(max_of_threads, fmax)
