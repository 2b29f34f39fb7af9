// SPDX-License-Identifier: Apache-2.0
// batch_norm_reduce and batch_norm_reduce_channels_last on the CPU: the sums of each row of one
// channel, or of all channels in parts of some pixels, added in order in float64.
#include "anyop/ops/batch_norm_reduce.h"

#include "anyop/ops/batch_norm_reduce_channels_last.h"
#include "channel_pixels.h"

namespace anyop::cpu {
namespace {

struct Work {
  ChannelRuns runs;
  PlainRows grad_out, x, mean, rstd, sum_dy, sum_dy_xmu, grad_weight, grad_bias;
  const uint8_t* mask;
  double* sums;  // of each part: of d of all channels, then of d * (x - mean)
};

template <typename E>
inline void SumsOfRow(const Work& work, int64_t unit) {
  using Wide = typename WideOf<E>::Type;
  const ChannelRuns& runs = work.runs;
  const int64_t c = unit % runs.C;
  const Wide mean = reinterpret_cast<const Wide*>(work.mean.data)[c];
  RunReader<E> grad(work.grad_out, work.mask), in(work.x);
  double sums[2] = {};
  ForRun(unit * runs.S, runs.S, [&](const Place& place) {
    const E *d = grad.Read(place).data, *x = in.Read(place).data;
    if constexpr (sizeof(E) == sizeof(bfloat16)) {
      const auto product = [mean](const auto& d, const auto& v) { return d * (v - mean); };
      sums[0] += SumHalves(place.n, [](const auto& d) { return d; }, d);
      sums[1] += SumHalves(place.n, product, d, x);
    } else {
      AddRun(
          place.n, d, x, [mean](Wide v) { return v - mean; }, [](Wide d, Wide) { return d; }, sums);
    }
  });
  double* to = work.sums + unit / runs.C * 2 * runs.C + c;
  to[0] = sums[0], to[runs.C] = sums[1];
}
template <typename E>
inline void SumsOfPixels(const Work& work, int64_t part) {
  using Wide = typename WideOf<E>::Type;
  const ChannelRuns& runs = work.runs;
  RunReader<E> grad(work.grad_out, work.mask), in(work.x);
  ForBlocks(runs.C, [&](int64_t at, int64_t size) {
    const Wide* mean = reinterpret_cast<const Wide*>(work.mean.data) + at;
    const auto distance = [mean](int64_t c) { return [m = mean[c]](Wide v) { return v - m; }; };
    const auto gradient = [](int64_t) { return [](Wide d, Wide) { return d; }; };
    alignas(64) Wide sums[kBlock], products[kBlock];
    for (int64_t c = 0; c < size; ++c) sums[c] = products[c] = 0;
    ForPixelsAtOnce<kPixelsSummed>(part * runs.kPixels * runs.C + at, size, runs.InPart(part),
                                   runs.C, [&](const Place& place, auto numbers) {
                                     AddPixels(place, grad.Read(place), in.Read(place), numbers,
                                               distance, gradient, sums, products);
                                   });
    double* to = work.sums + part * 2 * runs.C + at;
    NarrowTo(sums, size, to);
    NarrowTo(products, size, to + runs.C);
  });
}

template <typename Wide>
inline void JoinChannels(const Work& work, int64_t first, int64_t n) {
  double sums[kJoined] = {}, products[kJoined] = {};
  const int64_t parts = work.runs.count ? work.runs.parts() : 0;
  for (int64_t part = 0; part < parts; ++part) {
    const double *of_d = work.sums + part * 2 * work.runs.C + first, *more = of_d + work.runs.C;
#pragma omp simd
    for (int64_t c = 0; c < n; ++c) sums[c] += of_d[c], products[c] += more[c];
  }
  const auto write = [&](const PlainRows& to, const double* values) {
    if (!to.data) return;
    RowWriter<Wide> row(to.dtype, to.At(first));
    NarrowTo(values, n, row.Target(0));
    row.Write(0, n);
  };
  write(work.sum_dy, sums);
  write(work.sum_dy_xmu, products);
  write(work.grad_bias, sums);
  for (int64_t c = 0; c < n; ++c)
    products[c] *= reinterpret_cast<const Wide*>(work.rstd.data)[first + c];
  write(work.grad_weight, products);
}

ANYOP_CPU_CLONES void Units(const Work* work, int64_t begin, int64_t end) {
  const bool last = work->runs.last();
  ForUnitsInPlace(work->x.dtype, !last, work->mask, begin, end, [&](auto element, int64_t unit) {
    using E = decltype(element);
    if constexpr (!kRunsAlone<E>) {
      if (last) return SumsOfPixels<E>(*work, unit);
    }
    SumsOfRow<E>(*work, unit);
  });
}
ANYOP_CPU_CLONES void Joins(const Work* work, int64_t begin, int64_t end) {
  ForUnits(work, begin, end, [&](auto wide, int64_t unit) {
    work->runs.ForJoined(unit,
                         [&](int64_t c, int64_t n) { JoinChannels<decltype(wide)>(*work, c, n); });
  });
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
  return RunRows(call, &work, runs.joins(), kJoined * (runs.count ? runs.parts() : 1), Joins);
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
