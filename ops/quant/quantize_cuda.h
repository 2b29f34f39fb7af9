// SPDX-License-Identifier: Apache-2.0
// Quantises rows to float8_e4m3fn or int8 on CUDA, by the convention of quantize_row.h. An element
// of size s moves s + 1 bytes. Who does what: anyop/cuda/row.h; rows that no row-wide number is
// needed of are cut into slices.
#pragma once

#include "anyop/cuda/row.h"
#include "anyop/cuda/walk.h"
#include "values_row_cuda.h"

namespace anyop::cuda {
namespace {

constexpr float kLeastMagnitude = 1e-10f, kGreatestE4M3 = 448, kGreatestFactor = 0x1.fffffep127f;

// ---- elements ----

__device__ inline float AtMost(float v, float limit) { return -AtLeast(-v, -limit); }

// A scale and its reciprocal.
struct Scale {
  float value, factor;

  // most / limit and 1 / that, rounded as IEEE's division is: a product, or an approximation, and a
  // correction (Markstein 1990). Infinity has none; nothing else ends here.
  __device__ static Scale Of(float most, float limit, float by_limit) {
    const float m = AtLeast(most, kLeastMagnitude), first = m * by_limit;
    const bool finite = m < INFINITY;
    const float value = finite ? fmaf(fmaf(-first, limit, m), by_limit, first) : m;
    const float guess = Reciprocal(value);
    return {value, finite ? fmaf(fmaf(-value, guess, 1.0f), guess, guess) : guess};
  }
  __device__ static Scale Given(float value) {
    return {value, AtMost(AtLeast(__frcp_rn(value), -kGreatestFactor), kGreatestFactor)};
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
// Four of them, the first in the lowest byte.
__device__ inline unsigned FourInt8(float a, float b, float c, float d) {
#if ANYOP_PTX
  unsigned high, all;  // NaN is 0 as an integer
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, 0;"
      : "=r"(high)
      : "r"(__float2int_rn(d)), "r"(__float2int_rn(c)));
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;"
      : "=r"(all)
      : "r"(__float2int_rn(b)), "r"(__float2int_rn(a)), "r"(high));
  return all;
#else
  return ToInt8(a) | ToInt8(b) << 8 | ToInt8(c) << 16 | ToInt8(d) << 24;
#endif
}
__device__ inline unsigned FourE4M3(float a, float b, float c, float d) {
#if ANYOP_PTX && __CUDA_ARCH__ >= 890
  unsigned all;
  asm("{\n.reg .b16 low, high;\n"
      "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high};\n}"
      : "=r"(all)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return all;
#else
  return ToE4M3(a) | ToE4M3(b) << 8 | ToE4M3(c) << 16 | ToE4M3(d) << 24;
#endif
}

// ---- rows ----

// What an operator quantises: its elements.
struct Itself {
  __device__ float operator()(float v) const { return v; }
};

// Where scales come from, where the kernel knows it.
enum class Scales { kAny, kOfRow, kOfGroups, kGiven };
template <typename Base, Scales kOf>
struct ScaledRow : Base {
  static constexpr Scales kScales = kOf;
  using Base::Base;
  // Registers for values are worth more than those for weights.
  template <typename ColumnsType>
  __device__ auto Columns(const ColumnsType& from) const {
    if constexpr (kMakesValues<Base>) return Base::Columns(from);
    if constexpr (!kMakesValues<Base>) return LateColumns<ColumnsType>{from};
  }
};
template <typename Row, typename = void>
constexpr Scales kScalesOf = Scales::kAny;
template <typename Row>
constexpr Scales kScalesOf<Row, std::void_t<decltype(Row::kScales)>> = Row::kScales;

// What a row's threads have found before they write it.
template <typename Values, Scales kOfWhat>
struct KnownValues {
  static constexpr Scales kOf = kOfWhat;
  Values values;
  float most;  // of the row, or of the group that the thread looks after
};
struct NothingKnown {};

// The results, instead of rows. kAny: as of RowsAt; else aligned to 8 bytes.
template <bool kAny>
struct QuantizedRows {
  RowsAt<kAny> out, given;  // given: scales, one for each group, or none
  float* scales;            // of all groups; NULL where nobody asks
  int64_t given_step, D, rows, group, groups;
  Divisor of_group;
  bool is_int8, aligned, plain;
  float limit, by_limit;

  QuantizedRows(const AnyopTensor* to, const AnyopTensor* scale, const AnyopTensor* found,
                int64_t columns, int64_t columns_of_group)
      : out(PlaceRows<kAny>(to)),
        given(PlaceRows<kAny>(scale)),
        scales(found ? static_cast<float*>(found->data) : nullptr),
        given_step(scale ? scale->strides[scale->ndim - 1] : 0),
        D(columns),
        rows(1),
        group(columns_of_group < D ? columns_of_group : D),
        groups(D ? CeilDiv(D, group) : 0),
        is_int8(AnyopDtypeOf(to) == kAnyopInt8),
        limit(is_int8 ? 127 : kGreatestE4M3),
        by_limit(1 / limit) {
    if (D && D < INT64_C(0x7fffffff)) of_group = Divisor(group);
    for (int d = 0; d < to->ndim - 1; ++d) rows *= to->shape[d];
    const Rows<char> places = RowsOf<char>(to);
    aligned = IsAligned(places.data, 8) && to->strides[to->ndim - 1] == 1;
    for (int d = 0; d < places.ndim; ++d) aligned = aligned && places.step[d] % 8 == 0;
    plain = aligned && places.HasOneStride() && (!scale || RowsOf<char>(scale).HasOneStride());
  }

  // Quantises f(elements...).
  template <typename Row, typename F, typename... Held>
  __device__ void Write(Row& row, const F& f, const Held&... held) const {
    if constexpr (kMakesValues<Row>) {
      auto known = ValuesOf(row, f, held...);
      if constexpr (known.kOf == Scales::kOfRow)
        known.most = row.Join(known.most, 0.0f, GreaterMagnitude());
      WriteTimes(row, 1, known, f, held...);
    } else {
      WriteTimes(row, 1, NothingKnown(), f, held...);
    }
  }
  // The sum over the row of add(sum, v), and with it, where they are kept, f(v, w) and the greatest
  // of them: the threads meet once.
  template <typename Row, typename Add, typename F, typename V, typename W>
  __device__ auto SumAndValues(Row& row, float* sum, const Add& add, const F& f, const V& v,
                               const W& w) const {
    if constexpr (kMakesValues<Row>) {
      float all = 0;
      const auto made = [&](float v, float w) {
        all = add(all, v);
        return f(v, w);
      };
      auto known = ValuesOf(row, made, v, w);
      if constexpr (known.kOf == Scales::kOfRow) {
        row.TotalAnd(all, known.most, 0.0f, GreaterMagnitude());
      } else {
        all = row.Total(all);
      }
      *sum = all;
      return known;
    } else {
      *sum = row.Sum(add, v);
      return NothingKnown();
    }
  }
  // Quantises f(elements...) * times; `known`: of SumAndValues.
  template <typename Row, typename Known, typename F, typename... Held>
  __device__ void WriteTimes(Row& row, float times, const Known& known, const F& f,
                             const Held&... held) const {
    const GreaterMagnitude greater;
    const int64_t index = row.index() < rows ? row.index() : 0;  // behind them nothing is written
    auto* to = reinterpret_cast<uint8_t*>(out.At(index));
    constexpr Scales kScales = kScalesOf<Row>;
    const bool finds = kScales == Scales::kAny ? !given.exists() : kScales != Scales::kGiven;
    const bool whole = kScales == Scales::kOfRow || (kScales != Scales::kOfGroups && groups == 1);
    const auto* scale_at = reinterpret_cast<const float*>(finds ? nullptr : given.At(index));
    float* found = scales && row.index() < rows ? scales + index * groups : nullptr;
    const auto scale_of = [&](Column g, float most) {
      return finds ? Scale::Of(most * times, limit, by_limit)
                   : Scale::Given(scale_at[g * given_step]);
    };
    // Of the group at column d, whose greatest is `most`; tells: this thread writes its scale.
    const auto factor_at = [&](Column d, float most, bool tells) {
      const Column g = GroupOf(d);
      const Scale scale = scale_of(g, most);
      if (found && tells) found[g] = scale.value;
      return finds ? scale.factor * times : scale.factor;
    };
    const auto factor_where = [&](int64_t d, float most) {
      return factor_at(static_cast<Column>(d), most, GroupOf(d) * int64_t{group} == d);
    };
    const auto factor_of_row = [&](float most) {
      if (finds && !kMakesValues<Row>) most = row.Join(most, 0.0f, greater);
      const Scale scale = scale_of(0, most);
      if (found && row.IsFirst()) *found = scale.value;
      return finds ? scale.factor * times : scale.factor;
    };
    if constexpr (kMakesValues<Row>) {
      const int lanes = static_cast<int>(group) / Row::kPer, mine = whole ? 0 : row.MyGroup(lanes);
      const float factor = whole ? factor_of_row(known.most)
                                 : factor_at(static_cast<Column>(row.ColumnOf(mine)), known.most,
                                             row.Has(mine) && row.IsFirstOfGroup(lanes));
      float factors[Row::kCount];
#pragma unroll
      for (int i = 0; i < Row::kCount; ++i)
        factors[i] = whole ? factor : row.OfGroup(i, lanes, factor);
      WithFour([&](const auto& four) {
#pragma unroll
        for (int i = 0; i < Row::kCount; ++i) {
          const auto words = Narrow<Row::kPer>(four, factors[i], known.values.at[i]);
          if (row.Has(i)) Put<Row::kPer>(to + row.ColumnOf(i), words);
        }
      });
    } else {
      const auto put = [&](int64_t d, float factor, const auto&... v) {
        float y[Row::kPer];
#pragma unroll
        for (int k = 0; k < Row::kPer; ++k) y[k] = finds ? f(v.at[k]...) : f(v.at[k]...) * times;
        Store<Row::kPer>(to + d, factor, y);
      };
      const auto most_of = [&](float most, auto... v) { return greater(most, f(v...)); };
      if (whole) {
        float most = 0;
        if constexpr (std::is_same<F, Itself>::value) {
          if (finds) most = row.MostMagnitude(held...);
        } else {
          if (finds) most = row.Fold(0.0f, most_of, held...);
        }
        const float factor = factor_of_row(most);
        row.EachPiece([&](int64_t d, const auto&... v) { put(d, factor, v...); }, held...);
      } else if (finds) {
        const auto use = [&](int64_t d, float most, const auto&... v) {
          put(d, factor_where(d, most), v...);
        };
        row.EachGroup(group, most_of, greater, use, held...);
      } else {
        row.EachPiece([&](int64_t d, const auto&... v) { put(d, factor_where(d, 0), v...); },
                      held...);
      }
    }
  }

 private:
  using Column = typename std::conditional<kAny, int64_t, int>::type;
  // f(elements...), and the greatest that this thread has of the row, or that groups have.
  template <typename Row, typename F, typename... Held>
  __device__ auto ValuesOf(Row& row, const F& f, const Held&... held) const {
    KnownValues<typename Row::Values, kScalesOf<Row>> known{row.Make(f, held...), 0};
    const GreaterMagnitude greater;
    float most[Row::kCount] = {};  // of each vector; [0]: of all
#pragma unroll
    for (int i = 0; i < Row::kCount; ++i) {
      float& to = most[known.kOf == Scales::kOfRow ? 0 : i];
#pragma unroll
      for (int k = 0; k < Row::kPer; ++k) to = greater(to, known.values.at[i][k]);
    }
    known.most = most[0];
    if constexpr (known.kOf == Scales::kOfGroups)
      known.most = row.JoinGroups(most, static_cast<int>(group) / Row::kPer, greater);
    return known;
  }
  __device__ Column GroupOf(Column d) const {
    if (kAny && D >= INT64_C(0x7fffffff)) return d / static_cast<Column>(group);
    return static_cast<Column>(of_group.Divide(static_cast<uint32_t>(d)));
  }

  // use(what makes a word of four numbers).
  template <typename Use>
  __device__ void WithFour(const Use& use) const {
    if (is_int8) {
      use([](float a, float b, float c, float d) { return FourInt8(a, b, c, d); });
    } else {
      use([](float a, float b, float c, float d) { return FourE4M3(a, b, c, d); });
    }
  }
  template <int kPer, typename Four>
  __device__ static Vector<unsigned, kPer / 4> Narrow(const Four& four, float factor,
                                                      const float (&y)[kPer]) {
    Vector<unsigned, kPer / 4> words;
#pragma unroll
    for (int k = 0; k < kPer; k += 4)
      words.at[k / 4] =
          four(y[k] * factor, y[k + 1] * factor, y[k + 2] * factor, y[k + 3] * factor);
    return words;
  }
  template <int kPer>
  __device__ void Put(uint8_t* to, const Vector<unsigned, kPer / 4>& words) const {
    if (!kAny || aligned) {
      *reinterpret_cast<Vector<unsigned, kPer / 4>*>(to) = words;
    } else {
#pragma unroll
      for (int k = 0; k < kPer; ++k)
        to[k] = static_cast<uint8_t>(words.at[k / 4] >> 8 * (k % 4) & 0xff);
    }
  }
  template <int kPer>
  __device__ void Store(uint8_t* to, float factor, const float (&y)[kPer]) const {
    if constexpr (kPer == 1) {
      *to = static_cast<uint8_t>(is_int8 ? ToInt8(y[0] * factor) : ToE4M3(y[0] * factor));
    } else {
      WithFour([&](const auto& four) { Put<kPer>(to, Narrow<kPer>(four, factor, y)); });
    }
  }
};

// ---- launches ----

// Whether an operator's values are kept as floats, once made: they cost more than to make them from
// what is held once more.
template <typename Op, typename = void>
constexpr bool kKeepsValues = false;
template <typename Op>
constexpr bool kKeepsValues<Op, std::void_t<decltype(Op::kKeepsValues)>> = true;

// Threads of a block at most, and blocks that must fit: 64 registers each.
constexpr int ValuesThreads(int of_thread) {
  return of_thread == 1 ? 128 : of_thread == 2 ? 1024 : 512;
}
constexpr int ValuesBlocks(int of_thread) { return of_thread == 1 ? 8 : of_thread == 2 ? 1 : 2; }
template <typename T, int kVectors, Scales kScales, typename Op>
__global__ void __launch_bounds__(ValuesThreads(kVectors), ValuesBlocks(kVectors))
    RunValues(const __grid_constant__ Op op, int64_t rows, int64_t D, int lanes) {
  using Row = std::conditional_t<kKeepsValues<Op> && kScales != Scales::kGiven,
                                 ValuesRow<T, kVectors>, RegisterRow<T, kVectors>>;
  WalkRows<ScaledRow<Row, kScales>>(op, rows, D, lanes, blockIdx.x, gridDim.x);
}

// Runs make(zero, kAny), an operator that writes `to`, over rows that fit as `fit` says. kWhole: it
// joins all of a row besides.
template <typename T, bool kWhole, typename Make>
int32_t RunQuantized(AnyopCall* call, RowShape shape, RowsFit fit, const QuantizedRows<true>& to,
                     const Make& make) {
  if (shape.rows == 0 || shape.D == 0) return kAnyopOk;
  constexpr int kPer = kPerVector<T>;
  const int64_t vectors = shape.D / kPer, of_group = to.group / kPer;
  using Plain = decltype(make(T(), std::false_type()));
  const bool in_fours = vectors <= int64_t{4} * ValuesThreads(4);
  const int of_thread = vectors <= 32 ? 1 : in_fours ? kVectorsOf<Plain> : vectors <= 2048 ? 2 : 8;
  const bool finds = !to.given.rows.data;
  bool fits = fit.vectors && fit.one_stride && (to.groups == 1 || to.group % kPer == 0);
  const auto run = [&](auto* kernel, const RowThreads& threads, const auto& op) {
    return OverlappingLaunch(threads, shape.rows)
        .Run(call, kernel, op, shape.rows, shape.D, threads.lanes);
  };
  const RowThreads held(vectors, of_thread, 1024);
  if (finds && to.groups > 1)  // of a power of two of pieces, which lanes of a warp share
    fits = fits && of_group >= (kKeepsValues<Plain> ? of_thread : 1) && of_group <= 32 &&
           (of_group & (of_group - 1)) == 0 && held.lanes % of_group == 0;
  if (fits && fit.plain && to.plain) {
    const auto op = make(T(), std::false_type());
    using Op = std::remove_const_t<decltype(op)>;
    if constexpr (!kWhole) {
      constexpr int64_t kSlice = 4 * MaxThreads(4);
      const int64_t slices = CeilDiv(vectors, kSlice);
      if (of_thread == 8 && slices <= 0xffff && !(finds && to.groups == 1)) {
        Launch launch = RowThreads(kSlice, 4, MaxThreads(4)).LaunchFor(shape.rows);
        launch.grid.y = static_cast<unsigned>(slices);
        return launch.Run(call, RunInSlices<T, Op>, op, shape.rows, shape.D);
      }
    }
    const auto run_values = [&](auto vectors_of_thread) {
      constexpr int kVectors = decltype(vectors_of_thread)::value;
      if (!finds) return run(RunValues<T, kVectors, Scales::kGiven, Op>, held, op);
      if (to.groups == 1) return run(RunValues<T, kVectors, Scales::kOfRow, Op>, held, op);
      return run(RunValues<T, kVectors, Scales::kOfGroups, Op>, held, op);
    };
    if (of_thread == 1) return run_values(std::integral_constant<int, 1>());
    if (of_thread == 2) return run_values(std::integral_constant<int, 2>());
    if constexpr (kVectorsOf<Op> == 4) {
      if (of_thread == 4) return run_values(std::integral_constant<int, 4>());
    }
    // Longer ones that are joined as a whole are no hidden states: as any rows, below.
    if constexpr (!kWhole) {
      if (vectors <= kMaxHeld) return run(RunInRegisters<T, 8, Op>, held, op);
    }
  }
  // Threads share rows as above: the same bits wherever results go.
  const bool in_vectors = fit.vectors && (to.groups == 1 || to.group % kPer == 0);
  StreamThreads streams(fit.columns  ? 1  // side by side: a thread for each
                        : in_vectors ? vectors
                                     : shape.D);
  if (fits && vectors <= kMaxHeld) streams.threads = held;
  if (in_vectors) return streams.Run<T, kPer>(call, shape, make(T(), std::true_type()));
  return streams.Run<Wide<T>, 1>(call, shape, make(Wide<T>(), std::true_type()));  // of any dtype
}

}  // namespace
}  // namespace anyop::cuda
