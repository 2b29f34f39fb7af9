// SPDX-License-Identifier: Apache-2.0
// Quantises rows to float8_e4m3fn or int8 on CUDA, by the convention of quantize_row.h. An element
// of size s moves s + 1 bytes. Who does what: anyop/cuda_row.h; rows that no row-wide number is
// needed of are cut into slices.
#pragma once

#include "anyop/cuda_row.h"
#include "anyop/cuda_walk.h"

namespace anyop::cuda {
namespace {

constexpr float kLeastMagnitude = 1e-10f, kGreatestE4M3 = 448;

// ---- elements ----

// v / divisor, rounded as IEEE's division is, for many v: a product and two corrections
// (Markstein 1990). `lift` keeps their rests away from where float32 ends.
struct Quotient {
  float divisor, reciprocal, lift, bound;

  __device__ static Quotient By(float of) {
    const float lift = fabsf(of) < 0x1p-60f ? 0x1p96f : fabsf(of) > 0x1p120f ? 0x1p-64f : 1;
    const float divisor = of * lift, guess = __fdividef(1.0f, divisor);
    if (!(divisor != 0 && fabsf(divisor) < INFINITY)) return {of, guess, 1, 0};
    return {divisor, fmaf(fmaf(-divisor, guess, 1.0f), guess, guess), lift, 0x1p100f};
  }
  __device__ float operator()(float v) const {
    const float lifted = v * lift, first = lifted * reciprocal;
    const float second = fmaf(fmaf(-first, divisor, lifted), reciprocal, first);
    const float third = fmaf(fmaf(-second, divisor, lifted), reciprocal, second);
    const float size = fabsf(first);
    return size > 0x1p-60f && size < bound ? third : first;  // 0 keeps its sign
  }
};

// One number in 8 bits.
__device__ inline unsigned ToE4M3(float v) {
  const float x = v == v ? fminf(fmaxf(v, -kGreatestE4M3), kGreatestE4M3) : v;
  const unsigned bits = __float_as_uint(x), a = bits & 0x7fffffffu;
  const unsigned denormal = __float_as_uint(__uint_as_float(a) + 0x1p14f) - 0x46800000u;
  const unsigned normal = (a - 0x3c000000u + 0x7ffff + (a >> 20 & 1)) >> 20;
  return (x != x ? 0x7f : a < 0x3c800000u ? denormal : normal) | (bits >> 24 & 0x80);
}
__device__ inline unsigned ToInt8(float v) {
  const float x = v == v ? fminf(fmaxf(v, -128.0f), 127.0f) : 0;
  return static_cast<unsigned>(__float2int_rn(x)) & 0xff;
}
// Two of them in 16 bits.
__device__ inline unsigned TwoInBytes(float low, float high, bool is_int8) {
  if (is_int8) return ToInt8(low) | ToInt8(high) << 8;
#if ANYOP_PTX && __CUDA_ARCH__ >= 890
  unsigned short two;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;" : "=h"(two) : "f"(low), "f"(high));
  return two;
#else
  return ToE4M3(low) | ToE4M3(high) << 8;
#endif
}

// Of magnitudes the bits have the order of the numbers, and NaN is above infinity.
struct GreaterMagnitude {
  __device__ float operator()(float a, float b) const {
    const unsigned x = __float_as_uint(a), y = __float_as_uint(fabsf(b));
    return __uint_as_float(x < y ? y : x);
  }
};

// ---- rows ----

// The results, instead of rows.
struct QuantizedRows {
  Rows<uint8_t> out;
  RowsAt<true> given;  // scales, one for each group, or none
  float* scales;       // of all groups; NULL where nobody asks
  int64_t D, group, groups;
  Divisor of_group;
  bool is_int8, aligned;
  Quotient by_limit;

  QuantizedRows(const AnyopTensor* to, const AnyopTensor* scale, const AnyopTensor* found,
                int64_t columns, int64_t columns_of_group)
      : out(RowsOf<uint8_t>(to)),
        given(PlaceRows<true>(scale)),
        scales(found ? static_cast<float*>(found->data) : nullptr),
        D(columns),
        group(columns_of_group < D ? columns_of_group : D),
        groups(D ? CeilDiv(D, group) : 0),
        is_int8(AnyopDtypeOf(to) == kAnyopInt8),
        aligned(IsAligned(out.data, 8)) {
    const float limit = is_int8 ? 127 : kGreatestE4M3;
    by_limit = {limit, 1 / limit, 1, 0x1p100f};
    if (D && D < INT64_C(0x7fffffff)) of_group = Divisor(group);
    for (int d = 0; d < out.ndim; ++d) aligned = aligned && out.step[d] % 8 == 0;
  }

  // Quantises f(elements...).
  template <typename Row, typename F, typename... Held>
  __device__ void Write(Row& row, const F& f, const Held&... held) const {
    const GreaterMagnitude greater;
    const auto most_of = [&](float most, auto... v) { return greater(most, f(v...)); };
    const bool finds = !given.exists(), whole = finds && groups == 1;
    const float of_row = whole ? row.Join(row.Fold(0.0f, most_of, held...), 0.0f, greater) : 0;
    uint8_t* to = out[row.index()];
    const char* scale_at = finds ? nullptr : given.At(row.index());
    const auto put = [&](int64_t d, float most, const auto&... v) {
      const int64_t g = GroupOf(d);
      float scale = whole ? of_row : most;
      if (finds) {
        scale = by_limit(scale < kLeastMagnitude ? kLeastMagnitude : scale);
      } else {
        scale = reinterpret_cast<const float*>(scale_at)[g * given.step];
      }
      if (scales && d == g * group) scales[row.index() * groups + g] = scale;
      Store<Row::kPer>(to + d, Quotient::By(scale), f, v...);
    };
    row.EachGroup(finds && !whole ? group : 0, most_of, greater, put, held...);
  }

 private:
  __device__ int64_t GroupOf(int64_t d) const {
    if (groups == 1) return 0;
    return D < INT64_C(0x7fffffff) ? of_group.Divide(static_cast<uint32_t>(d)) : d / group;
  }

  template <int kPer, typename F, typename... Pieces>
  __device__ void Store(uint8_t* to, const Quotient& by, const F& f, const Pieces&... v) const {
    if constexpr (kPer == 1) {
      *to = static_cast<uint8_t>(TwoInBytes(by(f(v.at[0]...)), 0, is_int8) & 0xff);
    } else {
      Vector<unsigned, kPer / 4> words;
#pragma unroll
      for (int k = 0; k < kPer; k += 4) {
        words.at[k / 4] = TwoInBytes(by(f(v.at[k]...)), by(f(v.at[k + 1]...)), is_int8) |
                          TwoInBytes(by(f(v.at[k + 2]...)), by(f(v.at[k + 3]...)), is_int8) << 16;
      }
      if (aligned) {
        *reinterpret_cast<Vector<unsigned, kPer / 4>*>(to) = words;
      } else {
#pragma unroll
        for (int k = 0; k < kPer; ++k)
          to[k] = static_cast<uint8_t>(words.at[k / 4] >> 8 * (k % 4) & 0xff);
      }
    }
  }
};

// ---- launches ----

// Runs make(kAny), an operator that writes `to`, over rows that fit as `fit` says. kWhole: it joins
// all of a row besides. kInputs: rows that it holds. kPlain: as of RunFitted.
template <typename T, bool kWhole, int kInputs, bool kPlain, typename Make>
int32_t RunQuantized(AnyopCall* call, RowShape shape, RowsFit fit, const QuantizedRows& to,
                     const Make& make) {
  if (shape.rows == 0 || shape.D == 0) return kAnyopOk;
  constexpr int kPer = kPerVector<T>;
  const int64_t vectors = shape.D / kPer, of_group = to.group / kPer;
  const bool finds = !to.given.rows.data;
  fit.vectors = fit.vectors && (to.groups == 1 || to.group % kPer == 0);
  if (finds && to.groups > 1) {  // of a power of two of pieces, which lanes of a warp share
    const RowThreads threads(vectors, vectors <= 32 ? 1 : vectors <= 1024 ? 4 : 8, 1024);
    const bool fits =
        of_group > 0 && (of_group & (of_group - 1)) == 0 && threads.lanes % of_group == 0;
    fit.one_stride = fit.one_stride && fits && of_group <= 32;
  }
  if constexpr (!kWhole) {
    constexpr int64_t kSlice = 4 * MaxThreads(4);
    const int64_t slices = CeilDiv(vectors, kSlice);
    const bool joins = finds && to.groups == 1;
    if (slices > 1 && slices <= 0xffff && !joins && fit.vectors && fit.one_stride) {
      const auto op = make(std::false_type());
      Launch launch = RowThreads(kSlice, 4, MaxThreads(4)).LaunchFor(shape.rows);
      launch.grid.y = static_cast<unsigned>(slices);
      return launch.Run(call, RunInSlices<T, std::remove_const_t<decltype(op)>>, op, shape.rows,
                        shape.D);
    }
    // Two long rows are more than the registers of a thread hold.
    if (kInputs > 1 && slices > 1) fit.one_stride = false;
  }
  return RunFitted<T, kPlain>(call, shape, fit, make);
}

}  // namespace
}  // namespace anyop::cuda
