// SPDX-License-Identifier: Apache-2.0
// Gradients of fused_moe on the CPU, expert by expert: the rows of grad_out by w2, the slopes of
// the activation (which is computed again), and products of them. Sums are float32 (float64); the
// gradient of hidden sums and the weighted hidden features are rounded once.
#include "anyop/ops/fused_moe_backward.h"

#include "../grouped/segments.h"
#include "../linear/gemm_blocks.h"
#include "../linear/reused_workspace.h"
#include "gates.h"
#include "token_sums.h"

namespace anyop {
namespace cpu {
namespace {

// Rows of one expert.
struct Slopes {
  Gates gates;
  int64_t H, slots;
  const int32_t* order;
  const char *hidden, *grad, *bias2;  // rows of width, of H; H or NULL
  const void* of_features;            // rows of I: grad_out by w2
  const float* weights;               // of each row
  char *to, *features;                // rows of width: gradient of hidden; of I: weight * feature
  float* grad_weights;                // of all slots, or NULL
};

template <typename Wide, typename Form>
inline void Differentiate(const Slopes* work, int64_t begin, int64_t end, Form form) {
  const Gates& gates = work->gates;
  const int64_t I = gates.I, item = SizeOf(gates.dtype), row_bytes = gates.width * item;
  const Wide limit = static_cast<Wide>(gates.limit);
  const auto low = [=](Wide g) { return Min(g, limit); };
  const auto clamp = [=](Wide u) { return Max(Min(u, limit), -limit); };
  const auto product = [](Wide a, Wide b) { return a * b; };
  for (int64_t row = begin; row < end; ++row) {
    const char* hidden = work->hidden + row * row_bytes;
    RowReader<Wide> gate(gates.dtype, hidden + gates.gate * item, I);
    RowReader<Wide> up(gates.dtype, hidden + gates.up * item, I);
    char* to = work->to + row * row_bytes;
    RowWriter<Wide> to_gate(gates.dtype, to + gates.gate * item);
    RowWriter<Wide> to_up(gates.dtype, to + gates.up * item);
    RowWriter<Wide> features(gates.dtype, work->features + row * I * item);
    const Wide weight = work->weights[row];
    double sum = 0;
    ForBlocks(I, [&](int64_t at, int64_t n) {
      const Wide *g = gate.Read(at, n), *u = up.Read(at, n);
      const Wide* d = static_cast<const Wide*>(work->of_features) + row * I + at;
      Wide feature[kBlock];
      const auto value = [=](Wide g, Wide u) { return form.Factor(low(g)) * form.Up(clamp(u)); };
      Apply(n, value, feature, g, u);
      sum += SumBlock(n, product, static_cast<const Wide*>(feature), d);
      Apply(n, [=](Wide v) { return weight * v; }, features.Target(at), feature);
      features.Write(at, n);
      const auto of_gate = [=](Wide g, Wide u, Wide d) {
        return g > limit ? Wide{0} : weight * d * form.Up(clamp(u)) * form.Slope(g);
      };
      Apply(n, of_gate, to_gate.Target(at), g, u, d);
      to_gate.Write(at, n);
      if (!gates.gated) return;
      const auto of_up = [=](Wide g, Wide u, Wide d) {
        return u > limit || u < -limit ? Wide{0} : weight * d * form.Factor(low(g));
      };
      Apply(n, of_up, to_up.Target(at), g, u, d);
      to_up.Write(at, n);
    });
    const int64_t slot = work->order[row];
    if (!work->grad_weights || slot < 0 || slot >= work->slots) continue;
    if (work->bias2) {
      RowReader<Wide> grad(gates.dtype, work->grad + row * work->H * item, work->H);
      RowReader<Wide> bias(gates.dtype, work->bias2, work->H);
      sum += Sum(work->H, product, grad, bias);
    }
    work->grad_weights[slot] = static_cast<float>(sum);
  }
}

ANYOP_CPU_CLONES void RunSlopes(const Slopes* work, int64_t begin, int64_t end) {
  WithFloat(work->gates.dtype, [&](auto wide) {
    using Wide = decltype(wide);
    WithGate<Wide>(work->gates, [&](auto form) { Differentiate<Wide>(work, begin, end, form); });
  });
}

}  // namespace
}  // namespace cpu

namespace {

class Gradients {
 public:
  Gradients(const FusedMoeBackwardArgs* args, AnyopCall* call, const cpu::Gates& gates)
      : a_(*args),
        call_(call),
        scratch_(call),
        dtype_(gates.dtype),
        item_(SizeOf(dtype_)),
        wide_(dtype_ == kAnyopFloat64 ? 8 : 4),
        slots_(args->T * args->K),
        order_(static_cast<const int32_t*>(args->order->data)) {
    work_.gates = gates;
    work_.H = a_.H, work_.slots = slots_;
    if (a_.grad_weights) work_.grad_weights = static_cast<float*>(a_.grad_weights->data);
  }

  int32_t Run() {
    int64_t most = 0;
    const auto rest = [](int64_t, int64_t) {};
    const auto count = [&](int64_t, int64_t begin, int64_t end) {
      most = std::max(most, end - begin);
      return kAnyopOk;
    };
    ForSegments(a_.offsets, a_.E, slots_, count, rest);
    if (!Allocate(most))
      return call_->fail(call_, kAnyopOutOfMemory, "no memory for the workspace");
    std::fill_n(inverse_, slots_, -1);  // also of what no expert's rows hold
    if (work_.grad_weights) std::fill_n(work_.grad_weights, slots_, 0.0f);
    const auto run = [&](int64_t e, int64_t begin, int64_t end) {
      return RunExpert(e, begin, end - begin);
    };
    if (const int32_t status = ForSegments(a_.offsets, a_.E, slots_, run, rest)) return status;
    if (a_.grad_x) {
      WithElement(dtype_, [&](auto zero) {
        using Element = decltype(zero);
        SumTokensOf(call_, reinterpret_cast<const typename cpu::WideOf<Element>::Type*>(results_),
                    slots_, inverse_, nullptr, a_.T, a_.K, a_.H,
                    static_cast<Element*>(a_.grad_x->data));
      });
    }
    return kAnyopOk;
  }

 private:
  char* Memory(int64_t bytes) { return static_cast<char*>(call_->workspace(call_, bytes + 64)); }

  bool Allocate(int64_t most) {
    const int64_t I = work_.gates.I, width = work_.gates.width;
    inverse_ = reinterpret_cast<int32_t*>(Memory(slots_ * 4));
    weights_ = reinterpret_cast<float*>(Memory(most * 4));
    counting_ = reinterpret_cast<int32_t*>(Memory(most * 4));
    grad_ = Memory(most * a_.H * item_);
    tokens_ = Memory(a_.grad_w13 ? most * a_.H * item_ : 0);
    of_features_ = Memory(most * I * wide_);
    features_ = Memory(most * I * item_);
    of_hidden_ = Memory(most * width * item_);
    results_ = Memory(a_.grad_x ? slots_ * a_.H * wide_ : 0);
    if (counting_)
      for (int64_t i = 0; i < most; ++i) counting_[i] = static_cast<int32_t>(i);
    return inverse_ && weights_ && counting_ && grad_ && tokens_ && of_features_ && features_ &&
           of_hidden_ && results_;
  }

  int32_t RunExpert(int64_t e, int64_t begin, int64_t rows) {
    const int64_t I = work_.gates.I, width = work_.gates.width, H = a_.H;
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t slot = order_[begin + i];
      const bool inside = slot >= 0 && slot < slots_;
      weights_[i] = inside ? static_cast<const float*>(a_.weights->data)[slot] : 0;
      if (inside) inverse_[slot] = static_cast<int32_t>(begin + i);
    }
    GatherTokensOf(call_, a_.grad_out, order_ + begin, rows, slots_, a_.K, grad_);
    int32_t status = ByWeight(rows, I, H, grad_, a_.w2, e, of_features_);
    if (status) return status;
    work_.order = order_ + begin;
    work_.hidden = ElementOf(a_.hidden, begin * width);
    work_.grad = grad_, work_.of_features = of_features_, work_.weights = weights_;
    work_.bias2 = a_.bias2 ? ElementOf(a_.bias2, e * H) : nullptr;
    work_.to = of_hidden_, work_.features = features_;
    cpu::RunRows(call_, &work_, rows, width, cpu::RunSlopes);
    if (a_.grad_w2) status = OfWeight(rows, H, I, grad_, features_, a_.grad_w2, e);
    if (status == kAnyopOk && a_.grad_w13) {
      GatherTokensOf(call_, a_.x, order_ + begin, rows, slots_, a_.K, tokens_);
      status = OfWeight(rows, width, H, of_hidden_, tokens_, a_.grad_w13, e);
    }
    if (a_.grad_bias2) SumRows(rows, H, grad_, weights_, a_.grad_bias2, e);
    if (a_.grad_bias13) SumRows(rows, width, of_hidden_, nullptr, a_.grad_bias13, e);
    if (status == kAnyopOk && a_.grad_x)
      status = ByWeight(rows, H, width, of_hidden_, a_.w13, e, results_ + begin * H * wide_);
    return status;
  }

  // rows (M, K) by a weight (K, N), or (N, K) where transposed, in float32 (float64).
  int32_t ByWeight(int64_t M, int64_t N, int64_t K, const char* rows, const AnyopTensor* weight,
                   int64_t e, void* out) {
    const char* at = ElementOf(weight, e * N * K);
    GemmProblem p = a_.transposed ? RowsByRows(dtype_, M, N, K, rows, at)
                                  : GradientOfRows(dtype_, M, K, N, rows, at, out);
    p.wide_out = dtype_ != kAnyopFloat64;
    p.out = out;
    return Gemm(scratch_.Next(), p);
  }

  // The gradient (N, K) of a weight, or (K, N) where transposed: grad (M, N) by rows (M, K).
  int32_t OfWeight(int64_t M, int64_t N, int64_t K, const char* grad, const char* rows,
                   const AnyopTensor* to, int64_t e) {
    void* out = ElementOf(to, e * N * K);
    return Gemm(scratch_.Next(), a_.transposed
                                     ? GradientOfWeight(dtype_, M, K, N, rows, grad, out)
                                     : GradientOfWeight(dtype_, M, N, K, grad, rows, out));
  }

  // The sum of rows (M, N), each times its weight.
  void SumRows(int64_t M, int64_t N, const char* rows, const float* weights, const AnyopTensor* to,
               int64_t e) {
    WithElement(dtype_, [&](auto zero) {
      using Element = decltype(zero);
      SumTokensOf(call_, reinterpret_cast<const Element*>(rows), M, counting_, weights, 1, M, N,
                  reinterpret_cast<Element*>(ElementOf(to, e * N)));
    });
  }

  const FusedMoeBackwardArgs& a_;
  AnyopCall* call_;
  ReusedWorkspace scratch_;
  AnyopDtype dtype_;
  int64_t item_, wide_, slots_;
  const int32_t* order_;
  cpu::Slopes work_ = {};
  int32_t *inverse_ = nullptr, *counting_ = nullptr;
  float* weights_ = nullptr;
  char *grad_ = nullptr, *tokens_ = nullptr, *of_features_ = nullptr, *features_ = nullptr,
       *of_hidden_ = nullptr, *results_ = nullptr;
};

}  // namespace
}  // namespace anyop

extern "C" int32_t anyop_fused_moe_backward_cpu(const FusedMoeBackwardArgs* args, AnyopCall* call) {
  anyop::cpu::Gates gates;
  if (const int32_t status = anyop::cpu::ReadGates(args, call, &gates)) return status;
  return anyop::Gradients(args, call, gates).Run();
}
