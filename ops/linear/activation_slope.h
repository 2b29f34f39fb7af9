// SPDX-License-Identifier: Apache-2.0
// The gradient in front of an activation, grad_out times the slope, rounded to its type, and the
// sums of its columns.
#pragma once

#include "activation_forms.h"
#include "anyop/cpu/columns.h"

namespace anyop::cpu {

// Rows of N elements without gaps. pre: of dtype, nullptr where there is no activation. to: of
// dtype, or nullptr. bias: where the sums of the columns of `to` before they are rounded belong, or
// nullptr.
struct SlopeWork {
  const void *grad, *pre;
  AnyopDtype grad_dtype, dtype;
  char* to;
  const AnyopTensor* bias;
  int64_t rows, N;
  Activation activation;
  const ColumnSums* sums = nullptr;
  int64_t first = 0;  // number of the first row among those that are summed
};

template <typename Wide, typename Form>
inline void MultiplyBySlope(const SlopeWork* work, int64_t begin, int64_t end) {
  const int64_t N = work->N;
  const auto bytes = [](AnyopDtype of) { return of == kDtype<Wide> ? int64_t{sizeof(Wide)} : 2; };
  const auto at_row = [N, bytes](const void* data, int64_t row, AnyopDtype of) {
    return static_cast<const char*>(data) + row * N * bytes(of);
  };
  const AnyopDtype pre_dtype = work->pre ? work->dtype : work->grad_dtype;
  for (int64_t row = begin; row < end; ++row) {
    RowReader<Wide> grad(work->grad_dtype, at_row(work->grad, row, work->grad_dtype), N);
    RowReader<Wide> pre(pre_dtype, at_row(work->pre ? work->pre : work->grad, row, pre_dtype), N);
    RowWriter<Wide> to(work->dtype, work->to + row * N * bytes(work->dtype));
    Wide* sum = work->bias ? work->sums->At<Wide>(work->first + row) : nullptr;
    ForBlocks(N, [&](int64_t at, int64_t n) {
      Wide found[kBlock];
      const auto slope = [](Wide g, Wide v) { return g * Form::Slope(v); };
      Apply(n, slope, found, grad.Read(at, n), pre.Read(at, n));
      if (sum) Apply(n, [](Wide s, Wide v) { return s + v; }, sum + at, sum + at, found);
      if (!work->to) return;
      __builtin_memcpy(to.Target(at), found, n * sizeof(Wide));
      to.Write(at, n);
    });
  }
}

[[maybe_unused]] ANYOP_CPU_CLONES void RunSlope(const SlopeWork* work, int64_t begin, int64_t end) {
  WithFloat(work->dtype, [&](auto wide) {
    WithActivation(work->activation, [&](auto form) {
      MultiplyBySlope<decltype(wide), decltype(form)>(work, begin, end);
    });
  });
}

// Fills work.to and work.bias, of which one or both may be nullptr.
inline int32_t ActivationSlope(AnyopCall* call, SlopeWork work) {
  const ColumnSums sums(call, work.dtype, work.rows, work.bias ? work.N : 0);
  if (!sums.has_memory()) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  work.sums = &sums;
  sums.RunParts(call, &work, work.rows, work.N, RunSlope);
  if (work.bias) sums.Write(call, 0, work.bias);
  return kAnyopOk;
}

}  // namespace anyop::cpu
