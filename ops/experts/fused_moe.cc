// SPDX-License-Identifier: Apache-2.0
// fused_moe and native_fused_moe on the CPU: for each expert that has rows its tokens are gathered,
// multiplied, activated and multiplied again, some rows at a time; then each token's rows are added
// in the order of its slots. Sums are float32 (float64); hidden features are rounded once.
#include "anyop/ops/fused_moe.h"

#include "../linear/gemm_blocks.h"
#include "../linear/reused_workspace.h"
#include "anyop/ops/native_fused_moe.h"
#include "gates.h"
#include "slots.h"
#include "token_sums.h"

namespace anyop {
namespace cpu {
namespace {

// Rows of sums (width) become rows of hidden features (I), and are kept where that is wanted.
struct Hidden {
  Gates gates;
  const void* sums;
  char *to, *kept;
};

template <typename Wide, typename Form>
inline void Combine(const Hidden* work, int64_t begin, int64_t end, Form form) {
  const Gates gates = work->gates;
  const int64_t item = SizeOf(gates.dtype);
  const Wide limit = static_cast<Wide>(gates.limit);
  const auto combine = [=](Wide g, Wide u) {
    return form.Factor(Min(g, limit)) * form.Up(Max(Min(u, limit), -limit));
  };
  for (int64_t row = begin; row < end; ++row) {
    const Wide* sums = static_cast<const Wide*>(work->sums) + row * gates.width;
    RowWriter<Wide> to(gates.dtype, work->to + row * gates.I * item);
    ForBlocks(gates.I, [&](int64_t at, int64_t n) {
      Apply(n, combine, to.Target(at), sums + gates.gate + at, sums + gates.up + at);
      to.Write(at, n);
    });
    if (!work->kept) continue;
    RowWriter<Wide> kept(gates.dtype, work->kept + row * gates.width * item);
    ForBlocks(gates.width, [&](int64_t at, int64_t n) {
      Apply(n, [](Wide v) { return v; }, kept.Target(at), sums + at);
      kept.Write(at, n);
    });
  }
}

ANYOP_CPU_CLONES void Activate(const Hidden* work, int64_t begin, int64_t end) {
  WithFloat(work->gates.dtype, [&](auto wide) {
    using Wide = decltype(wide);
    WithGate<Wide>(work->gates, [&](auto form) { Combine<Wide>(work, begin, end, form); });
  });
}

}  // namespace
}  // namespace cpu

namespace {

// What native_fused_moe gives besides; of fused_moe NULL.
struct Kept {
  const AnyopTensor *hidden, *order, *offsets;
};

template <typename Args>
class Experts {
 public:
  Experts(const Args* args, AnyopCall* call, const cpu::Gates& gates, const Kept& kept)
      : a_(*args),
        call_(call),
        scratch_(call),
        dtype_(gates.dtype),
        item_(SizeOf(dtype_)),
        wide_(dtype_ == kAnyopFloat64 ? 8 : 4),
        slots_(args->T * args->K),
        hidden_{gates, nullptr, nullptr, nullptr},
        kept_(kept) {}

  int32_t Run() {
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
    if (kept_.order) order_ = static_cast<int32_t*>(kept_.order->data);
    if (kept_.offsets) offsets_ = static_cast<int32_t*>(kept_.offsets->data);
    std::fill_n(order_, slots_, -1);
    SortSlots({a_.ids, a_.expert_map, a_.E}, slots_, a_.E, 1, order_, inverse_, offsets_);
    return true;
  }

  // Blocks of rows: 4 Mi sums of the first product, at least 256 rows.
  bool Allocate() {
    const int64_t width = hidden_.gates.width, rows = offsets_[a_.E];
    int64_t count = 0;
    for (int64_t e = 0; e < a_.E; ++e)
      count = std::max<int64_t>(count, offsets_[e + 1] - offsets_[e]);
    most_ = std::min(count, std::max<int64_t>(256, (int64_t{4} << 20) / (width + 1)));
    tokens_ = Memory(most_ * a_.H * item_);
    sums_ = Memory(most_ * width * wide_);
    hidden_.to = Memory(most_ * hidden_.gates.I * item_);
    results_ = Memory(rows * a_.H * wide_);
    hidden_.sums = sums_;
    if (kept_.hidden && rows < slots_)  // rows of no slot
      std::memset(static_cast<char*>(kept_.hidden->data) + rows * width * item_, 0,
                  static_cast<size_t>((slots_ - rows) * width * item_));
    return tokens_ && sums_ && hidden_.to && results_;
  }

  // Some rows of one expert, from the gathered tokens to its results.
  int32_t RunRows(int64_t e, int64_t begin, int64_t rows) {
    const int64_t width = hidden_.gates.width;
    GatherTokensOf(call_, a_.x, order_ + begin, rows, slots_, a_.K, tokens_);
    if (const int32_t status = Multiply(rows, width, a_.H, tokens_, a_.w13, a_.bias13, e, sums_))
      return status;
    if (kept_.hidden) hidden_.kept = static_cast<char*>(kept_.hidden->data) + begin * width * item_;
    cpu::RunRows(call_, &hidden_, rows, width, cpu::Activate);
    return Multiply(rows, a_.H, hidden_.gates.I, hidden_.to, a_.w2, a_.bias2, e,
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
    return Gemm(scratch_.Next(), p);
  }

  const Args& a_;
  AnyopCall* call_;
  ReusedWorkspace scratch_;
  AnyopDtype dtype_;
  int64_t item_, wide_, slots_, most_ = 0;
  cpu::Hidden hidden_;
  Kept kept_;
  int32_t *order_ = nullptr, *inverse_ = nullptr, *offsets_ = nullptr;
  char *tokens_ = nullptr, *sums_ = nullptr, *results_ = nullptr;
};

template <typename Args>
int32_t RunExperts(const Args* args, AnyopCall* call, const Kept& kept) {
  cpu::Gates gates;
  if (const int32_t status = cpu::ReadGates(args, call, &gates)) return status;
  return Experts<Args>(args, call, gates, kept).Run();
}

}  // namespace
}  // namespace anyop

extern "C" int32_t anyop_fused_moe_cpu(const FusedMoeArgs* args, AnyopCall* call) {
  return anyop::RunExperts(args, call, {nullptr, nullptr, nullptr});
}
extern "C" int32_t anyop_native_fused_moe_cpu(const NativeFusedMoeArgs* args, AnyopCall* call) {
  return anyop::RunExperts(args, call, {args->hidden, args->order, args->offsets});
}
