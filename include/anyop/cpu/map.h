// SPDX-License-Identifier: Apache-2.0
// The element-wise scheme of CPU kernels: out[i] = f(in[i]...) for any strides, broadcasting and
// element types.
#ifndef ANYOP_CPU_MAP_H_
#define ANYOP_CPU_MAP_H_

#include <type_traits>

#include "anyop/cpu/convert.h"
#include "anyop/cpu/walk.h"

namespace anyop::cpu {

// One input or output: hands out blocks of E, in place where the tensor has them, else through its
// buffer. Others: the other types that the tensor may have. raw: kBlock * 8 bytes, for elements on
// their way between a strided tensor and a conversion. Its functions are not inlined, for the
// reason given at Gather.
template <typename E, typename Others>
class Blocks {
 public:
  Blocks(const Walk& walk, int64_t begin) : walk_(walk), cursor_(walk, begin) {}

  // How many of the next elements need no buffer. More than kBlock may be asked for only up to
  // that.
  int64_t InPlace() const { return walk_.dtype == kDtype<E> ? cursor_.ContiguousRun() : 0; }

  __attribute__((noinline)) const E* Read(int64_t n, char* raw) {
    const bool converts = Converts();
    if (const char* value = cursor_.Repeated(n)) return Fill(value, n);
    repeated_ = nullptr;
    const char* source = cursor_.Contiguous(n);
    if (source) {
      cursor_.Advance(n);
    } else {
      source = converts ? raw : reinterpret_cast<char*>(buffer_);
      cursor_.Gather(n, const_cast<char*>(source));
    }
    if (!converts) return reinterpret_cast<const E*>(source);
    Widen(Others(), walk_.dtype, source, n, buffer_);
    return buffer_;
  }

  // Where the next n results may be put; Write then brings them into the tensor.
  E* Target(int64_t n) {
    char* at = walk_.dtype == kDtype<E> ? cursor_.Contiguous(n) : nullptr;
    return at ? reinterpret_cast<E*>(at) : buffer_;
  }
  __attribute__((noinline)) void Write(const E* target, int64_t n, char* raw) {
    char* direct = cursor_.Contiguous(n);
    const char* source = reinterpret_cast<const char*>(target);
    if (Converts()) {
      Narrow(Others(), target, n, walk_.dtype, direct ? direct : raw);
      source = raw;
    }
    if (direct) return cursor_.Advance(n);
    cursor_.Scatter(n, source);
  }

 private:
  bool Converts() const { return Others::kCount > 0 && walk_.dtype != kDtype<E>; }

  // n copies of one value; those of the last call serve as long as the value does.
  const E* Fill(const char* value, int64_t n) {
    cursor_.Advance(n);
    if (value == repeated_ && n <= repeats_) return buffer_;
    repeated_ = value;
    repeats_ = n;
    E one;
    if (Converts()) {
      Widen(Others(), walk_.dtype, value, 1, &one);
    } else {
      __builtin_memcpy(&one, value, sizeof(E));
    }
    for (int64_t i = 0; i < (n < 16 ? n : 16); ++i) buffer_[i] = one;
    for (int64_t i = 16; i < n; i *= 2) {
      __builtin_memcpy(buffer_ + i, buffer_, (n - i < i ? n - i : i) * sizeof(E));
    }
    return buffer_;
  }

  const Walk& walk_;
  Cursor cursor_;
  const char* repeated_ = nullptr;
  int64_t repeats_ = 0;
  alignas(64) E buffer_[kBlock];
};

// How much f does: kLight takes less time than the memory.
enum Weight { kHeavy, kLight };

template <typename E, int N>
inline bool TakesOneByOne(const Plan<N>& plan) {
  return plan.out.dtype == kDtype<E> && plan.HasOneType() && plan.IsScattered();
}

// Elements [begin, end) of out = f(in...) one by one, all tensors having type E: for light work on
// scattered tensors, where to gather and scatter would take longer. Compiled for the baseline only.
template <typename E, int N, typename F, typename... In>
__attribute__((noinline)) void MapOneByOne(const Plan<N>& plan, int64_t begin, int64_t end, F f,
                                           In... in) {
  using Wide = typename WideOf<E>::Type;
  Cursor out(plan.out, begin);
  for (int64_t n, i = begin; i < end; i += n) {
    n = out.Run(end - i);
    ((n = in.Run(n)), ...);
    for (int64_t k = 0; k < n; ++k) {
      Store(f(Load<Wide>(*reinterpret_cast<const E*>(in.at() + k * in.stride_bytes()))...),
            reinterpret_cast<E*>(out.at() + k * out.stride_bytes()));
    }
    out.Advance(n);
    (in.Advance(n), ...);
  }
}

// Whether the second input has one value for each run of the others, such as a column: all of type
// E, and runs long enough for vectors.
template <typename E>
inline bool RepeatsSecond(const Plan<2>& plan) {
  const Walk &out = plan.out, &first = plan.in[0], &second = plan.in[1];
  return out.dtype == kDtype<E> && plan.HasOneType() && second.stride_bytes[0] == 0 &&
         second.size[0] >= 64 && out.stride_bytes[0] == out.item_bytes &&
         first.stride_bytes[0] == first.item_bytes && out.size[0] >= 64 && first.size[0] >= 64;
}
// Elements [begin, end) of out = f(in[0], in[1]) then: the value stays in a register, where blocks
// would be filled with it.
template <typename E, typename F>
inline void MapByValues(const Plan<2>& plan, int64_t begin, int64_t end, F f) {
  using Wide = typename WideOf<E>::Type;
  Cursor out(plan.out, begin), first(plan.in[0], begin), second(plan.in[1], begin);
  for (int64_t n, i = begin; i < end; i += n) {
    n = second.Run(first.Run(out.Run(end - i)));
    const Wide value = Load<Wide>(*reinterpret_cast<const E*>(second.at()));
    const auto with_value = [f, value](const auto& x) {
      return f(x, value - std::decay_t<decltype(x)>{});  // in all lanes; -0 stays -0
    };
    Apply(n, with_value, reinterpret_cast<E*>(out.at()), reinterpret_cast<const E*>(first.at()));
    out.Advance(n);
    first.Advance(n);
    second.Advance(n);
  }
}

// Elements [begin, end) of out = f(in...), with loops over E. From and To: the other types that
// inputs and output may have.
template <typename E, typename To, int N, typename F, typename... In>
inline void MapBlocks(const Plan<N>& plan, int64_t begin, int64_t end, F f, In&&... in) {
  alignas(64) char raw[kBlock * 8];
  Blocks<E, To> out(plan.out, begin);
  for (int64_t n, i = begin; i < end; i += n) {
    n = out.InPlace();
    ((n = in.InPlace() < n ? in.InPlace() : n), ...);
    if (n < kBlock) n = kBlock;
    if (n > end - i) n = end - i;
    E* target = out.Target(n);
    Apply(n, f, target, in.Read(n, raw)...);
    out.Write(target, n, raw);
  }
}
template <Weight weight, typename E, typename From, typename To, typename F>
inline void Map(const Plan<1>& plan, int64_t begin, int64_t end, F f) {
  if constexpr (weight == kLight && sizeof(E) >= 4) {
    if (TakesOneByOne<E>(plan))
      return MapOneByOne<E>(plan, begin, end, f, Cursor(plan.in[0], begin));
  }
  MapBlocks<E, To>(plan, begin, end, f, Blocks<E, From>(plan.in[0], begin));
}
template <Weight weight, typename E, typename From, typename To, typename F>
inline void Map(const Plan<2>& plan, int64_t begin, int64_t end, F f) {
  if constexpr (weight == kLight && sizeof(E) >= 4) {
    if (TakesOneByOne<E>(plan))
      return MapOneByOne<E>(plan, begin, end, f, Cursor(plan.in[0], begin),
                            Cursor(plan.in[1], begin));
  }
  if constexpr (weight == kLight) {
    if (RepeatsSecond<E>(plan)) return MapByValues<E>(plan, begin, end, f);
  }
  MapBlocks<E, To>(plan, begin, end, f, Blocks<E, From>(plan.in[0], begin),
                   Blocks<E, From>(plan.in[1], begin));
}

// For kernels whose tensors all have one floating-point type: f is called with float, or double for
// float64.
template <Weight weight = kHeavy, int N, typename F>
inline void MapFloats(const Plan<N>& plan, int64_t begin, int64_t end, F f) {
  using Half = Types<float16, bfloat16>;
  if (plan.out.dtype == kAnyopFloat64)
    return Map<weight, double, Types<>, Types<>>(plan, begin, end, f);
  Map<weight, float, Half, Half>(plan, begin, end, f);
}

// Where the tensors are all float16: converts in registers, for kernels that do little else. f is
// called with float and with vectors of it, by reference. False: they are not.
template <int N, typename F>
inline bool MapFloat16(const Plan<N>& plan, int64_t begin, int64_t end, F f) {
  if (plan.out.dtype != kAnyopFloat16 || !plan.HasOneType()) return false;
  Map<kLight, float16, Types<>, Types<>>(plan, begin, end, f);
  return true;
}

// For kernels of little work on promote(x, y), any inputs: f is called with float, vectors of it,
// or double.
template <int N, typename F>
inline void MapFloatNumbers(const Plan<N>& plan, int64_t begin, int64_t end, F f) {
  using Half = Types<float16, bfloat16>;
  using Numbers =
      Types<boolean, uint8_t, int8_t, int16_t, int32_t, int64_t, float16, bfloat16, float, double>;
  if (MapFloat16(plan, begin, end, f)) return;
  if (plan.out.dtype == kAnyopBFloat16 && plan.HasOneType()) {
    return Map<kLight, bfloat16, Types<>, Types<>>(plan, begin, end, f);
  }
  if (plan.out.dtype == kAnyopFloat64)
    return Map<kLight, double, Numbers, Types<>>(plan, begin, end, f);
  Map<kLight, float, Numbers, Half>(plan, begin, end, f);
}
// The same where promote(x, y) is an integer or bool: f is called with int64_t, or int32_t for all
// that are smaller. For bool all but 0 is True.
template <int N, typename F>
inline void MapIntegers(const Plan<N>& plan, int64_t begin, int64_t end, F f) {
  using Small = Types<boolean, uint8_t, int8_t, int16_t>;
  using UpTo32 = Types<boolean, uint8_t, int8_t, int16_t, int32_t>;
  if (plan.out.dtype == kAnyopInt64) {
    return Map<kLight, int64_t, UpTo32, Types<>>(plan, begin, end, f);
  }
  Map<kLight, int32_t, Small, Small>(plan, begin, end, f);
}

// Runs `run(plan, begin, end)` on the call's threads.
template <int N, typename Run>
inline int32_t RunMap(AnyopCall* call, const Plan<N>& plan, Run run) {
  if (plan.count < 0) {
    return call->fail(call, kAnyopNotImplemented, "more than 32 dimensions, expected at most 32");
  }
  ParallelFor(call, plan.count, kGrain, [&](int64_t begin, int64_t end) { run(plan, begin, end); });
  return kAnyopOk;
}

}  // namespace anyop::cpu

#endif  // ANYOP_CPU_MAP_H_
