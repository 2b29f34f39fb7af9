// SPDX-License-Identifier: Apache-2.0
// fused_moe on the CPU: for each expert that has rows its tokens are gathered, multiplied,
// activated and multiplied again, some rows at a time; then each token's rows are added in the
// order of its slots. Sums are float32 (float64); hidden features are rounded once.
#include "anyop/ops/fused_moe.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "../elementwise/gelu_forms.h"
#include "../linear/gemm_blocks.h"
#include "anyop/cpu_rows.h"
#include "slots.h"
#include "token_sums.h"

namespace anyop {
namespace cpu {
namespace {

// Rows of sums (width) become rows of hidden features (I). Without ups both are the gate.
struct Hidden {
  const FusedMoeArgs* args;
  const void* sums;
  char* to;
  int64_t I, width, gate, up;  // gate, up: where they begin in a row
  double limit;
};

template <typename Wide, typename Form>
inline void Combine(const Hidden* work, int64_t begin, int64_t end, Form form) {
  const int64_t I = work->I;
  const AnyopDtype dtype = AnyopDtypeOf(work->args->x);
  const Wide limit = static_cast<Wide>(work->limit);
  const auto combine = [=](Wide g, Wide u) {
    return form(Min(g, limit), Max(Min(u, limit), -limit));
  };
  for (int64_t row = begin; row < end; ++row) {
    const Wide* sums = static_cast<const Wide*>(work->sums) + row * work->width;
    RowWriter<Wide> to(dtype, work->to + row * I * SizeOf(dtype));
    ForBlocks(I, [&](int64_t at, int64_t n) {
      Apply(n, combine, to.Target(at), sums + work->gate + at, sums + work->up + at);
      to.Write(at, n);
    });
  }
}

template <typename Wide>
inline void CombineAs(const Hidden* work, int64_t begin, int64_t end) {
  const char* name = work->args->activation.data;
  const Wide alpha = static_cast<Wide>(work->args->alpha);
  const auto run = [&](auto form) { Combine<Wide>(work, begin, end, form); };
  if (!std::strcmp(name, "silu"))
    run([=](Wide g, Wide u) { return g * Sigmoid(alpha * g) * u; });
  else if (!std::strcmp(name, "swigluoai"))
    run([=](Wide g, Wide u) { return g * Sigmoid(alpha * g) * (u + 1); });
  else if (!std::strcmp(name, "gelu"))
    run([](Wide g, Wide u) { return GeluErf::Value(g) * u; });
  else if (!std::strcmp(name, "gelu_tanh"))
    run([](Wide g, Wide u) { return GeluTanh::Value(g) * u; });
  else  // relu2
    run([](Wide g, Wide) { return Max(g, Wide{0}) * Max(g, Wide{0}); });
}

ANYOP_CPU_CLONES void Activate(const Hidden* work, int64_t begin, int64_t end) {
  WithFloat(AnyopDtypeOf(work->args->x),
            [&](auto wide) { CombineAs<decltype(wide)>(work, begin, end); });
}

}  // namespace
}  // namespace cpu

namespace {

class Experts {
 public:
  Experts(const FusedMoeArgs* args, AnyopCall* call, double limit)
      : a_(*args),
        call_(call),
        dtype_(AnyopDtypeOf(args->x)),
        item_(SizeOf(dtype_)),
        wide_(dtype_ == kAnyopFloat64 ? 8 : 4),
        slots_(args->T * args->K) {
    const bool gated = std::strcmp(args->activation.data, "relu2") != 0;
    width_ = a_.A + a_.B - a_.H;
    I_ = gated ? width_ / 2 : width_;
    hidden_ = {args, nullptr, nullptr, I_, width_, 0, 0, limit};
    if (gated) (a_.up_first ? hidden_.gate : hidden_.up) = I_;
  }

  int32_t Run() {
    if (a_.T == 0 || a_.H == 0) return kAnyopOk;
    if (!Sort() || !Allocate())
      return call_->fail(call_, kAnyopOutOfMemory, "no memory for the workspace");
    for (int64_t e = 0; e < a_.E; ++e)
      for (int64_t begin = offsets_[e]; begin < offsets_[e + 1]; begin += most_) {
        const int64_t rows = std::min(most_, offsets_[e + 1] - begin);
        if (const int32_t status = RunRows(e, begin, rows)) return status;
      }
    WithElement(dtype_, [&](auto zero) {
      using Element = decltype(zero);
      SumTokensOf(call_, reinterpret_cast<const typename cpu::WideOf<Element>::Type*>(results_),
                  slots_, inverse_, static_cast<const float*>(a_.weights->data), a_.T, a_.K, a_.H,
                  static_cast<Element*>(a_.out->data));
    });
    return kAnyopOk;
  }

 private:
  char* Memory(int64_t bytes) { return static_cast<char*>(call_->workspace(call_, bytes + 64)); }

  bool Sort() {
    order_ = reinterpret_cast<int32_t*>(Memory((2 * slots_ + a_.E + 1) * 4));
    if (!order_) return false;
    inverse_ = order_ + slots_, offsets_ = inverse_ + slots_;
    SortSlots({a_.ids, a_.expert_map, a_.E}, slots_, a_.E, 1, order_, inverse_, offsets_);
    return true;
  }

  // Blocks of rows: 4 Mi sums of the first product, at least 256 rows.
  bool Allocate() {
    int64_t count = 0;
    for (int64_t e = 0; e < a_.E; ++e)
      count = std::max<int64_t>(count, offsets_[e + 1] - offsets_[e]);
    most_ = std::min(count, std::max<int64_t>(256, (int64_t{4} << 20) / (width_ + 1)));
    tokens_ = Memory(most_ * a_.H * item_);
    sums_ = Memory(most_ * width_ * wide_);
    hidden_.to = Memory(most_ * I_ * item_);
    results_ = Memory(offsets_[a_.E] * a_.H * wide_);
    hidden_.sums = sums_;
    return tokens_ && sums_ && hidden_.to && results_;
  }

  // Some rows of one expert, from the gathered tokens to its results.
  int32_t RunRows(int64_t e, int64_t begin, int64_t rows) {
    const int64_t bytes = a_.H * item_;
    ParallelFor(call_, rows, 65536 / bytes + 1, [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i)
        std::memcpy(tokens_ + i * bytes,
                    static_cast<const char*>(a_.x->data) + order_[begin + i] / a_.K * bytes,
                    static_cast<size_t>(bytes));
    });
    if (const int32_t status = Multiply(rows, width_, a_.H, tokens_, a_.w13, a_.bias13, e, sums_))
      return status;
    cpu::RunRows(call_, &hidden_, rows, width_, cpu::Activate);
    return Multiply(rows, a_.H, I_, hidden_.to, a_.w2, a_.bias2, e,
                    results_ + begin * a_.H * wide_);
  }

  int32_t Multiply(int64_t M, int64_t N, int64_t K, const char* rows, const AnyopTensor* weight,
                   const AnyopTensor* bias, int64_t e, void* out) {
    if (N == 0) return kAnyopOk;
    const auto at = [&](const AnyopTensor* tensor, int64_t element) {
      return static_cast<const char*>(tensor->data) + element * item_;
    };
    GemmProblem p = RowsByRows(dtype_, M, N, K, rows, at(weight, e * N * K));
    if (a_.transposed) p.b = {p.b.data, N, 1, nullptr, nullptr};
    if (bias) p.bias = at(bias, e * N);
    p.wide_out = dtype_ != kAnyopFloat64;
    p.out = out;
    return Gemm(call_, p);
  }

  const FusedMoeArgs& a_;
  AnyopCall* call_;
  AnyopDtype dtype_;
  int64_t item_, wide_, slots_, width_ = 0, I_ = 0, most_ = 0;
  cpu::Hidden hidden_ = {};
  int32_t *order_ = nullptr, *inverse_ = nullptr, *offsets_ = nullptr;
  char *tokens_ = nullptr, *sums_ = nullptr, *results_ = nullptr;
};

}  // namespace
}  // namespace anyop

extern "C" int32_t anyop_fused_moe_cpu(const FusedMoeArgs* args, AnyopCall* call) {
  const double limit =
      args->limit.has ? args->limit.value : std::numeric_limits<double>::infinity();
  if (!(limit > 0)) return call->fail(call, kAnyopValueError, "limit is not positive");
  return anyop::Experts(args, call, limit).Run();
}
