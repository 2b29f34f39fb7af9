// SPDX-License-Identifier: Apache-2.0
// Gradients of linear_gated on the CPU: the gradient of both products, rounded, in scratch memory,
// and two products of it. Without `pre` the gates and values are computed again.
#include "anyop/ops/linear_gated_backward.h"

#include "activation_forms.h"
#include "anyop/cpu/rows.h"
#include "gemm_blocks.h"

namespace anyop::cpu {
namespace {

struct Work {
  AnyopDtype dtype;
  const char *grad, *pre;  // rows of D, of 2 D
  char* to;                // as pre
  int64_t D;
  Activation activation;
};

template <typename Wide, typename Form>
inline void Differentiate(const Work* work, int64_t begin, int64_t end) {
  const AnyopDtype dtype = work->dtype;
  const int64_t D = work->D, item = dtype == kDtype<Wide> ? int64_t{sizeof(Wide)} : 2;
  for (int64_t row = begin; row < end; ++row) {
    const char* pre = work->pre + row * 2 * D * item;
    RowReader<Wide> grad(dtype, work->grad + row * D * item, D), gate(dtype, pre, D),
        value(dtype, pre + D * item, D);
    char* to = work->to + row * 2 * D * item;
    RowWriter<Wide> to_gate(dtype, to), to_value(dtype, to + D * item);
    const auto of_gate = [](Wide g, Wide x, Wide v) { return g * v * Form::Slope(x); };
    MapRow(D, of_gate, to_gate, grad, gate, value);
    MapRow(D, [](Wide g, Wide x) { return g * Form::Value(x); }, to_value, grad, gate);
  }
}

ANYOP_CPU_CLONES void Run(const Work* work, int64_t begin, int64_t end) {
  WithFloat(work->dtype, [&](auto wide) {
    WithActivation(work->activation, [&](auto form) {
      Differentiate<decltype(wide), decltype(form)>(work, begin, end);
    });
  });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_linear_gated_backward_cpu(const LinearGatedBackwardArgs* args,
                                                   AnyopCall* call) {
  using namespace anyop;
  const AnyopDtype dtype = AnyopDtypeOf(args->grad_out);
  cpu::Work work = {};
  work.dtype = dtype;
  work.grad = static_cast<char*>(args->grad_out->data);
  work.D = args->D;
  if (const int32_t status = cpu::ReadActivation(call, args->activation.data, &work.activation))
    return status;
  const int64_t M = args->rows, N = 2 * args->D, K = args->K, bytes = M * N * SizeOf(dtype);
  work.to = static_cast<char*>(call->workspace(call, args->pre ? bytes : 2 * bytes));
  if (!work.to && bytes) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  int32_t status = kAnyopOk;
  if (args->pre) {
    work.pre = static_cast<char*>(args->pre->data);
  } else {
    GemmProblem problem = RowsByRows(dtype, M, N, K, args->x->data, args->weight->data);
    problem.out = work.to + bytes;
    work.pre = work.to + bytes;
    status = Gemm(call, problem);
  }
  if (status == kAnyopOk) status = cpu::RunRows(call, &work, M, N, cpu::Run);
  if (status == kAnyopOk && args->grad_x)
    status =
        Gemm(call, GradientOfRows(dtype, M, N, K, work.to, args->weight->data, args->grad_x->data));
  if (status == kAnyopOk && args->grad_weight)
    status = Gemm(
        call, GradientOfWeight(dtype, M, N, K, work.to, args->x->data, args->grad_weight->data));
  return status;
}
