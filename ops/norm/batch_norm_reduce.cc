// SPDX-License-Identifier: Apache-2.0
// batch_norm_reduce and batch_norm_reduce_channels_last on the CPU: the sums of each row of one
// channel, or of all channels in parts of some pixels, added in order in float64.
#include "anyop/ops/batch_norm_reduce.h"

#include "anyop/ops/batch_norm_reduce_channels_last.h"
#include "channel_runs.h"

namespace anyop::cpu {
namespace {

struct Work {
  ChannelRuns runs;
  PlainRows grad_out, x, mean, rstd, sum_dy, sum_dy_xmu, grad_weight, grad_bias;
  const uint8_t* mask;
  double* sums;  // of each part: of d of all channels, then of d * (x - mean)
};

template <typename Wide>
inline void SumsOfRow(const Work& work, int64_t unit) {
  const ChannelRuns& runs = work.runs;
  const int64_t begin = unit * runs.S, c = unit % runs.C;
  const Wide mean = reinterpret_cast<const Wide*>(work.mean.data)[c];
  MaskedReader<Wide> grad(work.grad_out, work.mask, begin, runs.S);
  RowReader<Wide, kBlock> in(work.x.dtype, work.x.At(begin), runs.S);
  double sum = 0, product = 0;
  ForBlocks(runs.S, [&](int64_t at, int64_t size) {
    const Wide *d = grad.Read(at, size), *x = in.Read(at, size);
    sum += SumBlock(size, [](Wide d) { return d; }, d);
    product += SumBlock(size, [mean](Wide d, Wide v) { return d * (v - mean); }, d, x);
  });
  double* to = work.sums + unit / runs.C * 2 * runs.C + c;
  to[0] = sum, to[runs.C] = product;
}
template <typename Wide>
inline void AddPixel(int64_t n, const Wide* d, const Wide* x, const Wide* mean, Wide* sums,
                     Wide* products) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    sums[i] += d[i];
    products[i] += d[i] * (x[i] - mean[i]);
  }
}
template <typename Wide>
inline void SumsOfPixels(const Work& work, int64_t part) {
  const ChannelRuns& runs = work.runs;
  double* to = work.sums + part * 2 * runs.C;
  ForBlocks(runs.C, [&](int64_t at, int64_t size) {
    const Wide* mean = reinterpret_cast<const Wide*>(work.mean.data) + at;
    Wide sums[kBlock], products[kBlock];
    for (int64_t i = 0; i < size; ++i) sums[i] = products[i] = 0;
    ForPixels(runs, part, at, [&](int64_t begin, int64_t pixels) {
      const int64_t all = (pixels - 1) * runs.C + size;
      MaskedReader<Wide> grad(work.grad_out, work.mask, begin, all);
      RowReader<Wide, kBlock> in(work.x.dtype, work.x.At(begin), all);
      const Wide *d = grad.Read(0, all), *x = in.Read(0, all);
      for (int64_t at = 0; at < all; at += runs.C)
        AddPixel(size, d + at, x + at, mean, sums, products);
    });
    for (int64_t i = 0; i < size; ++i) to[at + i] = sums[i], to[runs.C + at + i] = products[i];
  });
}

template <typename Wide>
inline void JoinChannel(const Work& work, int64_t c) {
  double sum = 0, product = 0;
  const int64_t parts = work.runs.count ? work.runs.parts() : 0;
  for (int64_t part = 0; part < parts; ++part) {
    const double* from = work.sums + part * 2 * work.runs.C + c;
    sum += from[0], product += from[work.runs.C];
  }
  const auto write = [&](const PlainRows& to, double value) {
    if (!to.data) return;
    RowWriter<Wide> one(to.dtype, to.At(c));
    *one.Target(0) = static_cast<Wide>(value);
    one.Write(0, 1);
  };
  write(work.sum_dy, sum);
  write(work.sum_dy_xmu, product);
  write(work.grad_bias, sum);
  if (work.grad_weight.data)
    write(work.grad_weight, product * reinterpret_cast<const Wide*>(work.rstd.data)[c]);
}

ANYOP_CPU_CLONES void Units(const Work* work, int64_t begin, int64_t end) {
  ForUnits(work, begin, end, [&](auto wide, int64_t unit) {
    using Wide = decltype(wide);
    work->runs.last() ? SumsOfPixels<Wide>(*work, unit) : SumsOfRow<Wide>(*work, unit);
  });
}
ANYOP_CPU_CLONES void Joins(const Work* work, int64_t begin, int64_t end) {
  ForUnits(work, begin, end, [&](auto wide, int64_t c) { JoinChannel<decltype(wide)>(*work, c); });
}

template <typename Args>
int32_t RunReduce(const Args& args, AnyopCall* call, bool last) {
  Work work = {{args.N, args.C, args.numel_S, last},
               PlainRows(args.grad_out),
               PlainRows(args.x),
               PlainRows(args.mean),
               PlainRows(args.rstd),
               PlainRows(args.sum_dy),
               PlainRows(args.sum_dy_xmu),
               PlainRows(args.grad_weight),
               PlainRows(args.grad_bias),
               MaskOf(args.mask),
               nullptr};
  const ChannelRuns& runs = work.runs;
  if (runs.count > 0) {
    const int64_t bytes = runs.parts() * 2 * runs.C * int64_t{sizeof(double)};
    work.sums = static_cast<double*>(call->workspace(call, bytes));
    if (!work.sums) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
    RunRows(call, &work, runs.units(), runs.of_unit(), Units);
  }
  return RunRows(call, &work, runs.C, runs.count ? 4 * runs.parts() : 1, Joins);
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_batch_norm_reduce_cpu(const BatchNormReduceArgs* args, AnyopCall* call) {
  return anyop::cpu::RunReduce(*args, call, false);
}
extern "C" int32_t anyop_batch_norm_reduce_channels_last_cpu(
    const BatchNormReduceChannelsLastArgs* args, AnyopCall* call) {
  return anyop::cpu::RunReduce(*args, call, true);
}
