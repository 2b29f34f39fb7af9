// SPDX-License-Identifier: Apache-2.0
// Gradients of linear: two matrix products, which gemm.cc divides over the threads, and the sums of
// the columns of grad_out.
#include "anyop/ops/linear_backward.h"

#include "anyop/cpu/columns.h"
#include "gemm.h"

namespace anyop::cpu {
namespace {

struct Work {
  const LinearBackwardArgs& args;
  const ColumnSums& sums;
};

template <typename Wide>
inline void AddRows(const Work& work, int64_t begin, int64_t end) {
  const int64_t N = work.args.N;
  const Rows grad_out(work.args.grad_out);
  for (int64_t row = begin; row < end; ++row) {
    RowReader<Wide> grad(grad_out.dtype(), grad_out[row], N);
    Wide* sum = work.sums.At<Wide>(row);
    ForBlocks(N, [&](int64_t at, int64_t n) {
      Apply(n, [](Wide s, Wide g) { return s + g; }, sum + at, sum + at, grad.Read(at, n));
    });
  }
}

ANYOP_CPU_CLONES void Run(const Work* work, int64_t begin, int64_t end) {
  WithFloat(AnyopDtypeOf(work->args.grad_out),
            [&](auto wide) { AddRows<decltype(wide)>(*work, begin, end); });
}

int32_t SumRows(const LinearBackwardArgs& args, AnyopCall* call) {
  const ColumnSums sums(call, AnyopDtypeOf(args.grad_out), args.rows, args.N);
  if (!sums.has_memory()) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  const Work work = {args, sums};
  sums.RunParts(call, &work, args.rows, args.N, Run);
  sums.Write(call, 0, args.grad_bias);
  return kAnyopOk;
}

// grad_out (rows, N) by weight (N, K).
int32_t GradientOfX(const LinearBackwardArgs& args, AnyopCall* call) {
  GemmProblem problem = {};
  problem.fixed_tiles = true;
  problem.dtype = AnyopDtypeOf(args.grad_out);
  problem.M = args.rows;
  problem.N = args.K;
  problem.K = args.N;
  problem.a = {args.grad_out->data, args.N, 1, nullptr, nullptr};
  problem.b = {args.weight->data, args.K, 1, nullptr, nullptr};
  problem.out = args.grad_x->data;
  return Gemm(call, problem);
}

// The transpose of grad_out (rows, N) by x (rows, K).
int32_t GradientOfWeight(const LinearBackwardArgs& args, AnyopCall* call) {
  GemmProblem problem = {};
  problem.fixed_tiles = true;
  problem.dtype = AnyopDtypeOf(args.grad_out);
  problem.M = args.N;
  problem.N = args.K;
  problem.K = args.rows;
  problem.a = {args.grad_out->data, 1, args.N, nullptr, nullptr};
  problem.b = {args.x->data, args.K, 1, nullptr, nullptr};
  problem.out = args.grad_weight->data;
  return Gemm(call, problem);
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_linear_backward_cpu(const LinearBackwardArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  int32_t status = args->grad_bias ? SumRows(*args, call) : kAnyopOk;
  if (status == kAnyopOk && args->grad_x) status = GradientOfX(*args, call);
  if (status == kAnyopOk && args->grad_weight) status = GradientOfWeight(*args, call);
  return status;
}
