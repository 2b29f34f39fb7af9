// SPDX-License-Identifier: Apache-2.0
// Steps of optimizers on the CPU over lists that are all of bfloat16, or all of float16: a few
// elements of each are converted at a time, so that they stay in registers or nearly so.
#ifndef ANYOP_OPS_MULTI_TENSOR_STEP_HALVES_H_
#define ANYOP_OPS_MULTI_TENSOR_STEP_HALVES_H_

#include <type_traits>
#include <utility>

#include "anyop/cpu/lists.h"

namespace anyop::cpu {

// Calls use(s) with flags of s that the compiler knows: a loop over elements that tests them is not
// vectorised. A step with flags has its own, found by its type.
template <typename Step, typename Use>
inline void WithKnownFlags(const Step& s, Use use) {
  use(s);
}

// Which lists a step writes: p, g, states.
template <typename Op>
constexpr bool Writes(int list) {
  return Op::kWrites >> list & 1;
}

// Elements of p, g and states from `at` on, each s(p, g, states...), as the compiler converts them:
// fast enough for bfloat16.
template <typename Op, typename Step, typename T, typename... States>
inline void StepConverted(const Step s, int64_t at, int64_t n, T* p, const T* g,
                          States*... states) {
#pragma omp simd
  for (int64_t i = at; i < n; ++i) {
    float w = Load<float>(p[i]);
    [&](auto... state) {
      s(w, Load<float>(g[i]), state...);
      [[maybe_unused]] int list = 2;
      ((Writes<Op>(list++) ? Store(state, states + i) : void()), ...);
    }(Load<float>(states[i])...);
    if (Writes<Op>(0)) Store(w, p + i);
  }
}

#ifdef ANYOP_CPU_512
// The same by the processor's conversions; returns how many elements that were, whole vectors.
constexpr int kHalves = 32;
struct Widened {
  alignas(64) float at[kHalves];
};
template <typename T>
ANYOP_CPU_TARGET_512 inline void Widen512(const T* from, Widened* to) {
  auto* wide = reinterpret_cast<Floats512*>(to->at);
  wide[0] = Load512(from), wide[1] = Load512(from + 16);
}
template <typename T>
ANYOP_CPU_TARGET_512 inline void Narrow512(const Widened& x, T* to) {
  const auto* wide = reinterpret_cast<const Floats512*>(x.at);
  Store512(wide[0], wide[1], to);
}
template <typename Op, typename Step, typename T, size_t... I>
ANYOP_CPU_TARGET_512 __attribute__((noinline, flatten)) int64_t
Step512(const Step step, int64_t n, T* p, T* g, T* const (&states)[sizeof...(I) + 1],
        std::index_sequence<I...>) {
  int64_t i = 0;
  Widened w, h, state[sizeof...(I) + 1];
  WithKnownFlags(step, [&](const auto s) {
    for (; i + kHalves <= n; i += kHalves) {
      constexpr int kAhead = 1024;  // processors fetch too little of so many streams by themselves
      __builtin_prefetch(p + i + kAhead, Writes<Op>(0));
      __builtin_prefetch(g + i + kAhead);
      (__builtin_prefetch(states[I] + i + kAhead, Writes<Op>(I + 2)), ...);
      Widen512(p + i, &w);
      Widen512(g + i, &h);
      (Widen512(states[I] + i, &state[I]), ...);
#pragma omp simd
      for (int j = 0; j < kHalves; ++j) s(w.at[j], h.at[j], state[I].at[j]...);
      if (Writes<Op>(0)) Narrow512(w, p + i);
      (void(Writes<Op>(I + 2) ? Narrow512(state[I], states[I] + i) : void()), ...);
    }
  });
  return i;
}
#endif

// Elements of one tensor of each list, which all have type T. False: nothing is done.
template <typename Op, typename Step, typename T, size_t... I>
inline bool StepAll(const Step& s, int64_t n, T* p, T* g, T* const (&states)[sizeof...(I) + 1],
                    std::index_sequence<I...> all) {
  int64_t done = 0;
#ifdef ANYOP_CPU_512
  if (Has512<T>()) done = Step512<Op>(s, n, p, g, states, all);
#endif
  if (kDtype<T> != kAnyopBFloat16 && done == 0) return n == 0;
  WithKnownFlags(s,
                 [&](const auto& known) { StepConverted<Op>(known, done, n, p, g, states[I]...); });
  return true;
}

}  // namespace anyop::cpu

#endif  // ANYOP_OPS_MULTI_TENSOR_STEP_HALVES_H_
