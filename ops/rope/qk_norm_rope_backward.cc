// SPDX-License-Identifier: Apache-2.0
// Gradients of qk_norm_rope on the CPU: heads are turned back, then through the norm; those of the
// weights are sums over all heads of 32 tokens at a time, in a fixed order.
#include "anyop/ops/qk_norm_rope_backward.h"

#include "anyop/cpu/columns.h"
#include "head_norm.h"

namespace anyop::cpu {
namespace {

struct Side {  // of the queries, or of the keys
  const AnyopTensor *x, *weight, *grad_x, *grad_weight;
  Heads saved, grads;  // x and x; the gradient of the result and that of x, where it is wanted
};

struct Work {
  const QkNormRopeBackwardArgs& args;
  const Side* sides;
  Table table;
  TableRows rows;
  const ColumnSums* sums;
};

template <typename Wide>
inline void Differentiate(const Work& work, int64_t begin, int64_t end) {
  const QkNormRopeBackwardArgs& args = work.args;
  const int64_t D = args.D;
  const HeadWeight<Wide> weights[2] = {{args.q_weight, args.weight_offset},
                                       {args.k_weight, args.weight_offset}};
  Angles<Wide> angles;
  constexpr int64_t kFlush = 64;  // additions in a row in float32
  alignas(64) Wide head[kBlock], grad[kBlock], sum[kBlock];
  double whole[kBlock];
  for (int64_t token = begin; token < end; ++token) {
    angles.Read(work.table, work.rows[token], 0, args.R / 2);
    Wide* part = args.grad_q_weight || args.grad_k_weight ? work.sums->At<Wide>(token) : nullptr;
    for (int t = 0; t < 2; ++t) {
      const Side& side = work.sides[t];
      if (!side.grad_x && !side.grad_weight) continue;
      const Wide* w = weights[t].at;
      const int axis = side.x->ndim - 2;
      const int64_t step = side.x->strides[axis] * (side.x->dtype_bits / 8);
      const char* x = side.saved.x[token];
      for (int64_t i = 0; i < D; ++i) sum[i] = 0, whole[i] = 0;
      int64_t heads = 0;
      side.grads.ForEach(token, [&](const char* grad_out, char* grad_x) {
        Angles<Wide>::ReadWide(side.x, x, D, head);
        Angles<Wide>::ReadWide(side.grads.x_tensor, grad_out, D, grad);
        x += step;
        RotateBlock(work.table, grad, angles);
        const double rstd = ReciprocalRoot(head, D, args.eps);
        const Wide scale = static_cast<Wide>(rstd);
        Apply(D, [=](Wide s, Wide g, Wide v) { return s + g * (v * scale); }, sum, sum, grad, head);
        if (++heads % kFlush == 0) {
          Apply(D, [](double a, Wide b) { return a + b; }, whole, whole, sum);
          for (int64_t i = 0; i < D; ++i) sum[i] = 0;
        }
        if (!side.grad_x) return;
        const auto product = [](Wide g, Wide v, Wide u) { return g * u * v; };
        const double dot = SumBlock(D, product, grad, head, w) / static_cast<double>(D);
        const Wide share = static_cast<Wide>(dot * rstd * rstd);
        RowWriter<Wide> to(side.grads.out.dtype(), grad_x);
        const auto result = [=](Wide g, Wide v, Wide u) { return scale * (g * u - v * share); };
        Apply(D, result, to.Target(0), grad, head, w);
        to.Write(0, D);
      });
      if (!side.grad_weight) continue;
      const auto join = [](Wide a, Wide b, double c) { return static_cast<Wide>(a + (b + c)); };
      Apply(D, join, part + t * D, part + t * D, sum, whole);
    }
  }
}

ANYOP_CPU_CLONES void Run(const Work* work, int64_t begin, int64_t end) {
  WithFloat(AnyopDtypeOf(work->args.q),
            [&](auto wide) { Differentiate<decltype(wide)>(*work, begin, end); });
}

// wide: the sums are float64, and `to` may be float32.
int32_t WriteSums(AnyopCall* call, const ColumnSums& sums, int64_t first, bool wide,
                  const AnyopTensor& to) {
  AnyopTensor whole = to;
  whole.dtype_bits = wide ? 64 : to.dtype_bits;
  if (whole.dtype_bits != to.dtype_bits) whole.data = call->workspace(call, to.shape[0] * 8);
  if (!whole.data && to.shape[0] > 0)
    return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  sums.Write(call, first, &whole);
  if (whole.data != to.data)
    NarrowTo(static_cast<const double*>(whole.data), to.shape[0], static_cast<float*>(to.data));
  return kAnyopOk;
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_qk_norm_rope_backward_cpu(const QkNormRopeBackwardArgs* args,
                                                   AnyopCall* call) {
  using namespace anyop::cpu;
  const int64_t tokens = args->numel_X * args->S, D = args->D;
  const AnyopTensor *q = args->grad_q ? args->grad_q : args->grad_q_out,
                    *k = args->grad_k ? args->grad_k : args->grad_k_out;
  const Side sides[2] = {
      {args->q,
       args->q_weight,
       args->grad_q,
       args->grad_q_weight,
       {args->q, args->q},
       {args->grad_q_out, q}},
      {args->k,
       args->k_weight,
       args->grad_k,
       args->grad_k_weight,
       {args->k, args->k},
       {args->grad_k_out, k}},
  };
  const bool summed = args->grad_q_weight || args->grad_k_weight;
  const bool wide = AnyopDtypeOf(args->q) == kAnyopFloat64;
  const ColumnSums sums(call, AnyopDtypeOf(wide ? args->q : args->q_weight), tokens,
                        summed ? 2 * D : 0);
  if (!sums.has_memory()) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  Work work = {*args, sides, {args->cos, args->sin, args->interleaved != 0, true}, {}, &sums};
  if (const int32_t status =
          FindRows(call, args->positions, nullptr, tokens, args->S, args->P, &work.rows))
    return status;
  sums.RunParts(call, &work, tokens, D > 0 ? (args->H + args->G) * D + 1 : 0, Run);
  for (int t = 0; t < 2; ++t) {
    if (!sides[t].grad_weight) continue;
    if (const int32_t status = WriteSums(call, sums, t * D, wide, *sides[t].grad_weight))
      return status;
  }
  return kAnyopOk;
}
