// SPDX-License-Identifier: Apache-2.0
// batch_norm_stats and batch_norm_stats_channels_last on the CPU: the moments of each row of one
// channel, or of all channels in parts of some pixels, are joined in order: the same bits for any
// number of threads.
#include "anyop/ops/batch_norm_stats.h"

#include "anyop/ops/batch_norm_stats_channels_last.h"
#include "channel_pixels.h"

namespace anyop::cpu {
namespace {

struct Work {
  ChannelRuns runs;
  PlainRows x, mean, var;
  double* moments;  // of each part: means of all channels, then squares
};

template <typename E>
inline void MomentsOfRow(const Work& work, int64_t unit) {
  const ChannelRuns& runs = work.runs;
  const Moments found = MomentsOfRun<E>(work.x, unit * runs.S, runs.S);
  double* to = work.moments + unit / runs.C * 2 * runs.C + unit % runs.C;
  to[0] = found.mean, to[runs.C] = found.squares;
}
template <typename E>
inline void MomentsOfPart(const Work& work, int64_t unit) {
  using Wide = typename WideOf<E>::Type;
  const ChannelRuns& runs = work.runs;
  double* to = work.moments + unit * 2 * runs.C;
  RunReader<E> in(work.x);
  ForBlocks(runs.C, [&](int64_t at, int64_t size) {
    alignas(64) Wide mean[kBlock], squares[kBlock];
    MomentsOfPixels(in, unit * runs.kPixels * runs.C + at, size, runs.InPart(unit), runs.C, mean,
                    squares);
    NarrowTo(mean, size, to + at);
    NarrowTo(squares, size, to + runs.C + at);
  });
}

template <typename Wide>
inline void JoinChannels(const Work& work, int64_t first, int64_t n) {
  const ChannelRuns& runs = work.runs;
  const int64_t parts = runs.count ? runs.parts() : 0;
  const int64_t pixels = runs.count ? runs.count / runs.C : 1;
  const auto total = static_cast<double>(pixels);
  double mean[kJoined] = {}, squares[kJoined] = {};
  const auto for_parts = [&](auto use) {
    for (int64_t part = 0; part < parts; ++part) {
      const double* means = work.moments + part * 2 * runs.C + first;
      use(static_cast<double>(runs.InPart(part)), means, means + runs.C);
    }
  };
  for_parts([&](double count, const double* means, const double*) {
#pragma omp simd
    for (int64_t c = 0; c < n; ++c) mean[c] += count * means[c];
  });
  for (int64_t c = 0; c < n; ++c) mean[c] /= total;
  for_parts([&](double count, const double* means, const double* more) {
#pragma omp simd
    for (int64_t c = 0; c < n; ++c)
      squares[c] += more[c] + count * (means[c] - mean[c]) * (means[c] - mean[c]);
  });
  for (int64_t c = 0; c < n; ++c) {
    reinterpret_cast<Wide*>(work.mean.data)[first + c] = static_cast<Wide>(mean[c]);
    reinterpret_cast<Wide*>(work.var.data)[first + c] = static_cast<Wide>(squares[c] / total);
  }
}

ANYOP_CPU_CLONES void Units(const Work* work, int64_t begin, int64_t end) {
  const bool last = work->runs.last();
  ForUnitsInPlace(work->x.dtype, !last, false, begin, end, [&](auto element, int64_t unit) {
    using E = decltype(element);
    if constexpr (!kRunsAlone<E>) {
      if (last) return MomentsOfPart<E>(*work, unit);
    }
    MomentsOfRow<E>(*work, unit);
  });
}
ANYOP_CPU_CLONES void Joins(const Work* work, int64_t begin, int64_t end) {
  ForUnits(work, begin, end, [&](auto wide, int64_t unit) {
    work->runs.ForJoined(unit,
                         [&](int64_t c, int64_t n) { JoinChannels<decltype(wide)>(*work, c, n); });
  });
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
  return RunRows(call, &work, runs.joins(), kJoined * (runs.count ? runs.parts() : 1), Joins);
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
