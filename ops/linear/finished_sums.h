// SPDX-License-Identifier: Apache-2.0
// A product with its bias in float32 (float64), block by block, which a residual is added to, an
// activation applied and rounded once.
#pragma once

#include "activation_forms.h"
#include "anyop/cpu/rows.h"
#include "gemm_blocks.h"

namespace anyop::cpu {

// residual and pre are nullptr where there are none. sums: rows of N from row `first` on.
struct FinishedSums {
  const AnyopTensor *residual, *out, *pre;
  int64_t N;
  Activation activation;
  int64_t first = 0;
  const void* sums = nullptr;
};

template <typename Wide, typename Form>
inline void FinishSums(const FinishedSums* work, int64_t begin, int64_t end) {
  const int64_t N = work->N;
  const Rows out(work->out), pre = work->pre ? Rows(work->pre) : out,
                             residual = work->residual ? Rows(work->residual) : out;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t row = work->first + i;
    RowReader<Wide> in(kDtype<Wide>,
                       reinterpret_cast<const char*>(static_cast<const Wide*>(work->sums) + i * N),
                       N);
    RowWriter<Wide> to(out.dtype(), out[row]), before(out.dtype(), pre[row]);
    RowReader<Wide> more(work->residual ? out.dtype() : kDtype<Wide>,
                         work->residual ? residual[row] : out[row], work->residual ? N : 0);
    ForBlocks(N, [&](int64_t at, int64_t n) {
      const Wide* sums = in.Read(at, n);
      Wide found[kBlock];
      if (work->residual) {
        Apply(n, [](Wide a, Wide b) { return a + b; }, found, sums, more.Read(at, n));
        sums = found;
      }
      if (work->pre) {
        Apply(n, [](Wide v) { return v; }, before.Target(at), sums);
        before.Write(at, n);
      }
      Apply(n, [](Wide v) { return Form::Value(v); }, to.Target(at), sums);
      to.Write(at, n);
    });
  }
}

[[maybe_unused]] ANYOP_CPU_CLONES void FinishRows(const FinishedSums* work, int64_t begin,
                                                  int64_t end) {
  WithFloat(AnyopDtypeOf(work->out), [&](auto wide) {
    WithActivation(work->activation, [&](auto form) {
      FinishSums<decltype(wide), decltype(form)>(work, begin, end);
    });
  });
}

// The product, of which problem.out is not yet known, to work.out and, where there is one,
// work.pre.
inline int32_t FinishedProduct(AnyopCall* call, GemmProblem problem, FinishedSums work) {
  if (work.activation == Activation::kNone && !work.residual && !work.pre) {
    problem.out = work.out->data;
    return Gemm(call, problem);
  }
  return GemmInBlocks(call, problem, [&](int64_t first, int64_t rows, const void* sums) {
    work.first = first;
    work.sums = sums;
    RunRows(call, &work, rows, work.N, FinishRows);
  });
}

}  // namespace anyop::cpu
