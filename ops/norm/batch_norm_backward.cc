// SPDX-License-Identifier: Apache-2.0
// batch_norm_backward and batch_norm_backward_channels_last on the CPU, block by block of memory.
#include "anyop/ops/batch_norm_backward.h"

#include "anyop/ops/batch_norm_backward_channels_last.h"
#include "channel_runs.h"

namespace anyop::cpu {
namespace {

struct Work {
  ChannelRuns runs;
  PlainRows grad_out, x, grad_x, grad_residual;
  const uint8_t* mask;
  char* numbers;  // of each channel: mean, and a, b, e of grad_x = a * d - b - e * (x - mean)
};

template <typename Wide>
inline void GradientOfBlock(const Work& work, int64_t block) {
  const int64_t begin = block * kBlock, n = work.runs.SizeOf(block), C = work.runs.C;
  const Wide *means = reinterpret_cast<const Wide*>(work.numbers), *a = means + C, *b = a + C,
             *e = b + C;
  MaskedReader<Wide> grad(work.grad_out, work.mask, begin, n);
  const Wide* d = grad.Read(0, n);
  if (work.grad_residual.data) {
    RowWriter<Wide> to(work.grad_residual.dtype, work.grad_residual.At(begin));
    Apply(n, [](Wide d) { return d; }, to.Target(0), d);
    to.Write(0, n);
  }
  if (!work.grad_x.data) return;
  RowReader<Wide, kBlock> in(work.x.dtype, work.x.At(begin), n);
  RowWriter<Wide> to(work.grad_x.dtype, work.grad_x.At(begin));
  const Wide* x = in.Read(0, n);
  Wide* made = to.Target(0);
  work.runs.Cut(block, [&](int64_t at, int64_t size, int64_t c) {
    if (work.runs.last()) {
      const auto gradient = [](Wide d, Wide v, Wide m, Wide a, Wide b, Wide e) {
        return a * d - b - e * (v - m);
      };
      return Apply(size, gradient, made + at, d + at, x + at, means + c, a + c, b + c, e + c);
    }
    const Wide m = means[c], of_d = a[c], less = b[c], of_x = e[c];
    const auto gradient = [=](Wide d, Wide v) { return of_d * d - less - of_x * (v - m); };
    Apply(size, gradient, made + at, d + at, x + at);
  });
  to.Write(0, n);
}

ANYOP_CPU_CLONES void Blocks(const Work* work, int64_t begin, int64_t end) {
  ForUnits(work, begin, end,
           [&](auto wide, int64_t block) { GradientOfBlock<decltype(wide)>(*work, block); });
}

inline double Total(const AnyopTensor* count) {
  double total = 0;
  for (int64_t p = 0; count && p < count->shape[0]; ++p) total += CountOf(count, p);
  return total;
}

template <typename Wide, typename Args>
void PutNumbers(const Args& args, Wide* to) {
  const PlainRows weight(args.weight);
  const double total = Total(args.count), share = total > 0 ? 1 / total : 0;
  const auto of = [](const AnyopTensor* t, int64_t c) {
    return t ? static_cast<double>(static_cast<const Wide*>(t->data)[c]) : 0;
  };
  for (int64_t c = 0; c < args.C; ++c) {
    const double rstd = of(args.rstd, c), a = rstd * OfChannel(weight, c, Wide{1});
    to[c] = static_cast<Wide>(of(args.mean, c));
    to[args.C + c] = static_cast<Wide>(a);
    to[2 * args.C + c] = static_cast<Wide>(a * share * of(args.sum_dy, c));
    to[3 * args.C + c] = static_cast<Wide>(a * share * rstd * rstd * of(args.sum_dy_xmu, c));
  }
}

template <typename Args>
int32_t RunBackward(const Args& args, AnyopCall* call, bool last) {
  Work work = {{args.N, args.C, args.numel_S, last},
               PlainRows(args.grad_out),
               PlainRows(args.x),
               PlainRows(args.grad_x),
               PlainRows(args.grad_residual),
               MaskOf(args.mask),
               nullptr};
  if (work.runs.count == 0) return kAnyopOk;
  const int64_t bytes = 4 * args.C * (work.x.dtype == kAnyopFloat64 ? 8 : 4);
  work.numbers = static_cast<char*>(call->workspace(call, bytes));
  if (!work.numbers) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  WithFloat(work.x.dtype,
            [&](auto wide) { PutNumbers(args, reinterpret_cast<decltype(wide)*>(work.numbers)); });
  return RunRows(call, &work, work.runs.blocks(), kBlock, Blocks);
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_batch_norm_backward_cpu(const BatchNormBackwardArgs* args,
                                                 AnyopCall* call) {
  return anyop::cpu::RunBackward(*args, call, false);
}
extern "C" int32_t anyop_batch_norm_backward_channels_last_cpu(
    const BatchNormBackwardChannelsLastArgs* args, AnyopCall* call) {
  return anyop::cpu::RunBackward(*args, call, true);
}
