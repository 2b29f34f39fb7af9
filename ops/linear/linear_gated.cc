// SPDX-License-Identifier: Apache-2.0
// linear_gated and native_linear_gated on the CPU: blocks of rows of both products in float32
// (float64), of which one is activated and multiplied by the other, rounded once.
#include "anyop/ops/linear_gated.h"

#include "activation_forms.h"
#include "anyop/cpu/rows.h"
#include "anyop/ops/native_linear_gated.h"
#include "gemm_blocks.h"

namespace anyop::cpu {
namespace {

// pre is nullptr where it is not wanted. sums: rows of 2 D from row `first` on.
struct Work {
  const AnyopTensor *out, *pre;
  int64_t D;
  Activation activation;
  int64_t first = 0;
  const void* sums = nullptr;
};

template <typename Wide, typename Form>
inline void Combine(const Work* work, int64_t begin, int64_t end) {
  const int64_t D = work->D;
  const Rows out(work->out), pre(work->pre ? work->pre : work->out);
  for (int64_t i = begin; i < end; ++i) {
    const Wide* gate = static_cast<const Wide*>(work->sums) + i * 2 * D;
    RowWriter<Wide> to(out.dtype(), out[work->first + i]);
    ForBlocks(D, [&](int64_t at, int64_t n) {
      const auto combine = [](Wide g, Wide v) { return Form::Value(g) * v; };
      Apply(n, combine, to.Target(at), gate + at, gate + D + at);
      to.Write(at, n);
    });
    if (!work->pre) continue;
    RowWriter<Wide> both(out.dtype(), pre[work->first + i]);
    ForBlocks(2 * D, [&](int64_t at, int64_t n) {
      Apply(n, [](Wide v) { return v; }, both.Target(at), gate + at);
      both.Write(at, n);
    });
  }
}

ANYOP_CPU_CLONES void Run(const Work* work, int64_t begin, int64_t end) {
  WithFloat(AnyopDtypeOf(work->out), [&](auto wide) {
    WithActivation(work->activation,
                   [&](auto form) { Combine<decltype(wide), decltype(form)>(work, begin, end); });
  });
}

template <typename Args>
int32_t RunGated(const Args* args, AnyopCall* call, const AnyopTensor* pre) {
  Work work = {args->out, pre, args->D, Activation::kNone};
  if (const int32_t status = ReadActivation(call, args->activation.data, &work.activation))
    return status;
  const GemmProblem problem = RowsByRows(AnyopDtypeOf(args->out), args->rows, 2 * args->D, args->K,
                                         args->x->data, args->weight->data);
  return GemmInBlocks(call, problem, [&](int64_t first, int64_t rows, const void* sums) {
    work.first = first;
    work.sums = sums;
    RunRows(call, &work, rows, 2 * work.D, Run);
  });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_linear_gated_cpu(const LinearGatedArgs* args, AnyopCall* call) {
  return anyop::cpu::RunGated(args, call, nullptr);
}
extern "C" int32_t anyop_native_linear_gated_cpu(const NativeLinearGatedArgs* args,
                                                 AnyopCall* call) {
  return anyop::cpu::RunGated(args, call, args->pre);
}
