// SPDX-License-Identifier: Apache-2.0
// Steps of optimizers on the CPU: one pass over all lists, blocks of which are converted.
#ifndef ANYOP_OPS_MULTI_TENSOR_CPU_STEP_H_
#define ANYOP_OPS_MULTI_TENSOR_CPU_STEP_H_

#include <utility>

#include "anyop/cpu/lists.h"
#include "step.h"
#include "step_halves.h"

namespace anyop::cpu {

// Lists with data NULL are not given; masters are read instead of p, copies are written as p is.
template <int kStates>
struct StepLists {
  AnyopTensorList p, g, states[kStates ? kStates : 1], master, copy;

  bool AnyFloat64() const {
    bool any = cpu::AnyFloat64(p, g, master, copy);
    for (const AnyopTensorList& list : states) any |= cpu::AnyFloat64(list);
    return any;
  }
};

// Elements of a tensor.
struct Span {
  int64_t tensor, begin, n;
};

template <typename Step, typename W, typename... States>
inline void StepElements(const Step s, int64_t n, W* p, const W* g, States*... states) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) s(p[i], g[i], states[i]...);
}

template <typename Op, typename Step, typename W, int kStates, size_t... I>
inline void StepBlock(const Step& s, W, const StepLists<kStates>& lists, const Span& span,
                      std::index_sequence<I...>) {
  const auto of = [&](const AnyopTensorList& list) {
    return Elements<W>(list.data ? &list.data[span.tensor] : nullptr, span.begin, span.n);
  };
  Elements<W> p = of(lists.p), g = of(lists.g), master = of(lists.master), copy = of(lists.copy);
  [[maybe_unused]] Elements<W> states[] = {of(lists.states[kStates ? I : 0])..., of({})};
  Elements<W>& old = lists.master.data ? master : p;
  old.Read();
  ((Op::kReads >> (I + 2) & 1 ? void(states[I].Read()) : void()), ...);
  WithKnownFlags(s, [&](const auto& known) {
    StepElements(known, span.n, old.data(), g.Read(), states[I].data()...);
  });
  ((Op::kWrites >> (I + 2) & 1 ? states[I].Write() : void()), ...);
  if (!(Op::kWrites & 1)) return;
  old.Write();
  for (Elements<W>* other : {lists.master.data ? &p : nullptr, lists.copy.data ? &copy : nullptr}) {
    for (int64_t i = 0; other && i < span.n; ++i) other->data()[i] = old.data()[i];
    if (other) other->Write();
  }
}

template <size_t>
using FloatFor = float&;
// Of one tensor of each list, all of type T, of which there are no other copies. False: nothing is
// done, as that is not so, or the step has a loop of its own.
template <typename T, typename Op, typename Step, int kStates, size_t... I>
inline bool StepHalves(const Step& s, const StepLists<kStates>& lists, const Span& span,
                       std::index_sequence<I...> all) {
  const auto of = [&](const AnyopTensorList& list) {
    return static_cast<T*>(list.data[span.tensor].data) + span.begin;
  };
  const auto has = [&](const AnyopTensorList& list) {
    return list.data && AnyopDtypeOf(&list.data[span.tensor]) == kDtype<T>;
  };
  if constexpr (std::is_invocable_v<Step, float&, float, FloatFor<I>...>) {
    const bool is = !lists.master.data && !lists.copy.data && has(lists.p) && has(lists.g);
    if (!(is && ... && has(lists.states[I]))) return false;
    T* const states[] = {of(lists.states[I])..., nullptr};
    return StepAll<Op>(s, span.n, of(lists.p), of(lists.g), states, all);
  }
  return false;
}

// In a function of ANYOP_CPU_CLONES.
template <typename Op, int kStates>
inline void StepSpan(const Op& op, const StepLists<kStates>& lists, bool is_wide,
                     const Span& span) {
  WithFloat(is_wide ? kAnyopFloat64 : kAnyopFloat32, [&](auto zero) {
    const auto step = op.At(zero, span.tensor);
    constexpr auto kAll = std::make_index_sequence<kStates>();
    if (StepHalves<bfloat16, Op>(step, lists, span, kAll)) return;
    if (StepHalves<float16, Op>(step, lists, span, kAll)) return;
    for (int64_t done = 0; done < span.n; done += kBlock) {
      const int64_t n = span.n - done < kBlock ? span.n - done : kBlock;
      StepBlock<Op>(step, zero, lists, {span.tensor, span.begin + done, n}, kAll);
    }
  });
}

// run(op, lists, is_wide, span) for all elements, in any order and on several threads.
template <typename Op, int kStates, typename Run>
int32_t RunSteps(AnyopCall* call, const Op& op, const StepLists<kStates>& lists, const Run& run) {
  if (op.Skips()) return kAnyopOk;
  const ListChunks chunks(call, lists.p);
  if (int32_t status = chunks.status()) return status;
  const bool is_wide = lists.AnyFloat64();
  chunks.ForEach(call, [&](int64_t, int64_t k, int64_t begin, int64_t n) {
    run(op, lists, is_wide, Span{k, begin, n});
  });
  return kAnyopOk;
}

}  // namespace anyop::cpu

#endif  // ANYOP_OPS_MULTI_TENSOR_CPU_STEP_H_
