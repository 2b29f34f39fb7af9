// SPDX-License-Identifier: Apache-2.0
// batch_norm_stats and batch_norm_stats_channels_last on the CPU: the moments of each row of one
// channel, or of all channels in parts of some pixels, are joined in order: the same bits for any
// number of threads.
#include "anyop/ops/batch_norm_stats.h"

#include "anyop/ops/batch_norm_stats_channels_last.h"
#include "channel_runs.h"

namespace anyop::cpu {
namespace {

struct Work {
  ChannelRuns runs;
  PlainRows x, mean, var;
  double* moments;  // of each part: means of all channels, then squares
};

template <typename Wide>
inline void MomentsOfRow(const Work& work, int64_t unit) {
  const ChannelRuns& runs = work.runs;
  RowReader<Wide> in(work.x.dtype, work.x.At(unit * runs.S), runs.S);
  const Moments found = MomentsOf(runs.S, in);
  double* to = work.moments + unit / runs.C * 2 * runs.C + unit % runs.C;
  to[0] = found.mean, to[runs.C] = found.squares;
}
template <typename Wide>
inline void MomentsOfPixels(const Work& work, int64_t part) {
  const ChannelRuns& runs = work.runs;
  double* to = work.moments + part * 2 * runs.C;
  const Wide inverse = 1 / static_cast<Wide>(runs.InPart(part));
  ForBlocks(runs.C, [&](int64_t at, int64_t size) {
    Wide mean[kBlock], squares[kBlock];
    for (int64_t i = 0; i < size; ++i) mean[i] = squares[i] = 0;
    const auto for_pixels = [&](auto use) {
      ForPixels(runs, part, at, [&](int64_t begin, int64_t pixels) {
        const int64_t all = (pixels - 1) * runs.C + size;
        RowReader<Wide, kBlock> in(work.x.dtype, work.x.At(begin), all);
        const Wide* x = in.Read(0, all);
        for (int64_t pixel = 0; pixel < pixels; ++pixel) use(x + pixel * runs.C);
      });
    };
    for_pixels([&](const Wide* x) {
      Apply(size, [](Wide sum, Wide v) { return sum + v; }, mean, mean, x);
    });
    Apply(size, [inverse](Wide sum) { return sum * inverse; }, mean, mean);
    for_pixels([&](const Wide* x) {
      const auto add = [](Wide sum, Wide v, Wide m) { return sum + (v - m) * (v - m); };
      Apply(size, add, squares, squares, x, mean);
    });
    for (int64_t i = 0; i < size; ++i) to[at + i] = mean[i], to[runs.C + at + i] = squares[i];
  });
}

template <typename Wide>
inline void JoinChannel(const Work& work, int64_t c) {
  const ChannelRuns& runs = work.runs;
  const int64_t parts = runs.count ? runs.parts() : 0, count = runs.count ? runs.count / runs.C : 1;
  const double* from = work.moments + c;
  double mean = 0, squares = 0;
  for (int64_t part = 0; part < parts; ++part)
    mean += static_cast<double>(runs.InPart(part)) * from[part * 2 * runs.C];
  mean /= static_cast<double>(count);
  for (int64_t part = 0; part < parts; ++part) {
    const double far = from[part * 2 * runs.C] - mean;
    squares += from[(part * 2 + 1) * runs.C] + static_cast<double>(runs.InPart(part)) * far * far;
  }
  reinterpret_cast<Wide*>(work.mean.data)[c] = static_cast<Wide>(mean);
  reinterpret_cast<Wide*>(work.var.data)[c] =
      static_cast<Wide>(squares / static_cast<double>(count));
}

ANYOP_CPU_CLONES void Units(const Work* work, int64_t begin, int64_t end) {
  ForUnits(work, begin, end, [&](auto wide, int64_t unit) {
    using Wide = decltype(wide);
    work->runs.last() ? MomentsOfPixels<Wide>(*work, unit) : MomentsOfRow<Wide>(*work, unit);
  });
}
ANYOP_CPU_CLONES void Joins(const Work* work, int64_t begin, int64_t end) {
  ForUnits(work, begin, end, [&](auto wide, int64_t c) { JoinChannel<decltype(wide)>(*work, c); });
}

template <typename Args>
int32_t RunStats(const Args& args, AnyopCall* call, bool last) {
  Work work = {{args.N, args.C, args.numel_S, last},
               PlainRows(args.x),
               PlainRows(args.mean),
               PlainRows(args.var),
               nullptr};
  const ChannelRuns& runs = work.runs;
  if (runs.count > 0) {
    const int64_t bytes = runs.parts() * 2 * runs.C * int64_t{sizeof(double)};
    work.moments = static_cast<double*>(call->workspace(call, bytes));
    if (!work.moments) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
    RunRows(call, &work, runs.units(), runs.of_unit(), Units);
  }
  return RunRows(call, &work, runs.C, runs.count ? 8 * runs.parts() : 1, Joins);
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_batch_norm_stats_cpu(const BatchNormStatsArgs* args, AnyopCall* call) {
  return anyop::cpu::RunStats(*args, call, false);
}
extern "C" int32_t anyop_batch_norm_stats_channels_last_cpu(
    const BatchNormStatsChannelsLastArgs* args, AnyopCall* call) {
  return anyop::cpu::RunStats(*args, call, true);
}
