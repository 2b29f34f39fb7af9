// SPDX-License-Identifier: Apache-2.0
// Gradients of linear_cross_entropy on the CPU: the logits of a block of classes for all rows are
// computed again, become their own gradient (rounded to x's dtype), and are multiplied twice: for
// the block's rows of grad_weight, which are done then, and for a part of grad_x.
//
// Memory: that of class_blocks.h, half as much again for 16 bits, and grad_x once in float32 where
// there are several blocks, twice for 16 bits.
#include "anyop/ops/linear_cross_entropy_backward.h"

#include "class_blocks.h"
#include "loss_numbers.h"
#include "reused_workspace.h"
#include "targets.h"

namespace anyop::cpu {
namespace {

struct Work {
  const LinearCrossEntropyBackwardArgs& args;
  AnyopDtype dtype;  // of x
  Targets targets;
  void *logits, *grad;  // the same memory where they have one dtype
  int64_t first, n;     // classes of the block
  float *part, *sum;    // of grad_x, (rows, K) of float32 or float64
};

// The gradient of a row's logits is p * of_sum - of_all, less of_target at the target.
template <typename Wide>
struct Factors {
  Wide lse, of_sum = 0, of_all = 0, of_target = 0;

  Factors(const LinearCrossEntropyBackwardArgs& args, int64_t row, bool ignored) {
    const auto at = [row](const AnyopTensor* tensor) {
      return tensor ? static_cast<const Wide*>(tensor->data)[row] : Wide{0};
    };
    lse = at(args.lse);
    if (!ignored && args.grad_loss) {
      const double g = at(args.grad_loss), smoothing = args.label_smoothing;
      of_sum = static_cast<Wide>(args.z_loss != 0 ? g * (1 + 2 * args.z_loss * lse) : g);
      of_target = static_cast<Wide>(g * (1 - smoothing));
      of_all = static_cast<Wide>(g * smoothing / static_cast<double>(args.V));
    }
    if (args.grad_lse) of_sum += at(args.grad_lse);
  }
  bool none() const { return of_sum == 0 && of_all == 0 && of_target == 0; }
};

template <typename Wide>
inline void DifferentiateRow(const Work& work, int64_t row) {
  const LinearCrossEntropyBackwardArgs& args = work.args;
  const int64_t item = work.dtype == kDtype<Wide> ? int64_t{sizeof(Wide)} : 2, n = work.n;
  char* grad = static_cast<char*>(work.grad) + row * n * item;
  const int64_t target = work.targets[row];
  const Factors<Wide> f(args, row, target == work.targets.ignored);
  if (f.none()) {
    __builtin_memset(grad, 0, static_cast<size_t>(n * item));
    return;
  }
  Wide* logits = static_cast<Wide*>(work.logits) + row * n;
  RowWriter<Wide> to(work.dtype, grad);
  const Cap<Wide> cap(args.softcap);
  const auto gradient = [&f](Wide v) {
    return Exp2((v - f.lse) * kLog2E<Wide>) * f.of_sum - f.of_all;
  };
  ForBlocks(n, [&](int64_t at, int64_t size) {
    const Wide* z = logits + at;
    Wide* out = to.Target(at);
    const int64_t place = target - work.first - at;
    const bool inside = place >= 0 && place < size;
    const Wide before = inside ? z[place] : Wide{0};
    if (args.softcap > 0) {
      const auto capped = [&](Wide v) {
        const Wide c = cap(v), t = c * cap.inverse;
        return gradient(c) * (1 - t * t);
      };
      Apply(size, capped, out, z);
    } else {
      Apply(size, gradient, out, z);
    }
    if (inside) {
      const Wide t = args.softcap > 0 ? cap(before) * cap.inverse : Wide{0};
      out[place] -= f.of_target * (1 - t * t);
    }
    to.Write(at, size);
  });
}

ANYOP_CPU_CLONES void Differentiate(const Work* work, int64_t begin, int64_t end) {
  WithFloat(work->dtype, [&](auto wide) {
    for (int64_t row = begin; row < end; ++row) DifferentiateRow<decltype(wide)>(*work, row);
  });
}

// Classes [begin, end) of the block, row after row, in float64.
template <typename Wide>
inline void SumRows(const Work& work, int64_t begin, int64_t end) {
  const int64_t item = work.dtype == kDtype<Wide> ? int64_t{sizeof(Wide)} : 2;
  const auto* grad = static_cast<const char*>(work.grad);
  auto* bias = static_cast<char*>(work.args.grad_bias->data);
  double sums[kBlock];
  for (int64_t size, at = begin; at < end; at += size) {
    size = end - at < kBlock ? end - at : kBlock;
    for (int64_t j = 0; j < size; ++j) sums[j] = 0;
    for (int64_t row = 0; row < work.args.rows; ++row) {
      RowReader<Wide, kBlock> in(work.dtype, grad + (row * work.n + at) * item, size, 0);
      Apply(size, [](double s, double g) { return s + g; }, sums, sums, in.Read(0, size));
    }
    RowWriter<Wide> to(work.dtype, bias + (work.first + at) * item);
    Apply(size, [](double s) { return static_cast<Wide>(s); }, to.Target(0), sums);
    to.Write(0, size);
  }
}

ANYOP_CPU_CLONES void SumBias(const Work* work, int64_t begin, int64_t end) {
  WithFloat(work->dtype, [&](auto wide) { SumRows<decltype(wide)>(*work, begin, end); });
}

ANYOP_CPU_CLONES void AddPart(const Work* work, int64_t begin, int64_t end) {
  WithFloat(work->dtype, [&](auto wide) {
    using Wide = decltype(wide);
    auto* sum = reinterpret_cast<Wide*>(work->sum) + begin;
    const auto* part = reinterpret_cast<const Wide*>(work->part) + begin;
    Apply(end - begin, [](Wide s, Wide p) { return s + p; }, sum, sum, part);
  });
}

// The one rounding of grad_x.
ANYOP_CPU_CLONES void RoundX(const Work* work, int64_t begin, int64_t end) {
  RowReader<float, kBlock> sum(kAnyopFloat32, reinterpret_cast<const char*>(work->sum + begin),
                               end - begin);
  RowWriter<float> to(work->dtype, static_cast<char*>(work->args.grad_x->data) + begin * 2);
  MapRow(end - begin, [](float v) { return v; }, to, sum);
}

// grad_x += the block's gradient by its rows of weight.
int32_t AddToX(AnyopCall* call, const Work& work, const ClassBlocks& blocks) {
  const int64_t K = work.args.K, rows = work.args.rows;
  GemmProblem p = GradientOfRows(work.dtype, rows, work.n, K, work.grad,
                                 blocks.At(work.args.weight, work.first * K),
                                 work.first ? work.part : work.sum);
  p.wide_out = work.dtype != kAnyopFloat64;
  const int32_t status = Gemm(call, p);
  if (status || work.first == 0) return status;
  return RunRows(call, &work, rows * K, 1, AddPart);
}

int32_t RunBlock(AnyopCall* call, const Work& work, const ClassBlocks& blocks) {
  const LinearCrossEntropyBackwardArgs& args = work.args;
  int32_t status = blocks.Multiply(call, work.first, work.n, work.logits);
  if (!status) status = RunRows(call, &work, args.rows, work.n, Differentiate);
  if (!status && args.grad_bias) status = RunRows(call, &work, work.n, args.rows, SumBias);
  if (!status && args.grad_x) status = AddToX(call, work, blocks);
  if (!status && args.grad_weight)
    status =
        Gemm(call, GradientOfWeight(work.dtype, args.rows, work.n, args.K, work.grad, args.x->data,
                                    blocks.At(args.grad_weight, work.first * args.K)));
  return status;
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_linear_cross_entropy_backward_cpu(
    const LinearCrossEntropyBackwardArgs* args, AnyopCall* call) {
  using namespace anyop;
  const int64_t rows = args->rows, V = args->V, numbers = rows * args->K;
  const Targets targets(args->target, args->ignore_index);
  if (const int32_t status = CheckLossNumbers(call, args->label_smoothing, args->softcap))
    return status;
  if (const int32_t status = CheckTargets(call, *args->target, targets, rows, V)) return status;
  const ClassBlocks blocks(args->x, args->weight, args->bias, rows, V, args->K);
  const bool half = SizeOf(blocks.dtype) == 2, several = args->grad_x && blocks.most < V;
  const int64_t item = blocks.dtype == kAnyopFloat64 ? 8 : 4;
  const int64_t of_grad = half ? (rows * blocks.most * 2 + 63) / 64 * 64 : 0;
  const int64_t of_x = args->grad_x ? (numbers * item + 63) / 64 * 64 : 0;
  const int64_t bytes = blocks.bytes() + 64 + of_grad + of_x * (int64_t{several} + int64_t{half});
  auto* memory = static_cast<char*>(call->workspace(call, bytes));
  if (!memory) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  char* next = memory + (blocks.bytes() + 63) / 64 * 64;
  cpu::Work work = {*args, blocks.dtype, targets, memory, half ? next : memory, 0, 0, {}, {}};
  work.part = reinterpret_cast<float*>(next + of_grad);
  work.sum = half           ? work.part + (several ? of_x / 4 : 0)
             : args->grad_x ? static_cast<float*>(args->grad_x->data)
                            : nullptr;
  int32_t status = kAnyopOk;
  if (args->grad_x && V == 0)
    __builtin_memset(args->grad_x->data, 0, static_cast<size_t>(numbers * SizeOf(blocks.dtype)));
  ReusedWorkspace reused(call);
  for (; work.first < V && !status; work.first += blocks.most) {
    work.n = std::min(blocks.most, V - work.first);
    status = cpu::RunBlock(reused.NextStep(), work, blocks);
  }
  if (!status && args->grad_x && half && V > 0)
    status = cpu::RunRows(call, &work, numbers, 1, cpu::RoundX);
  return status;
}
