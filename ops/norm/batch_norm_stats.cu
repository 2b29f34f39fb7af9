// SPDX-License-Identifier: Apache-2.0
// batch_norm_stats and batch_norm_stats_channels_last on CUDA: the moments of parts
// (channel_sums_cuda.h), joined around their common mean.
#include "anyop/ops/batch_norm_stats.h"
#include "anyop/ops/batch_norm_stats_channels_last.h"
#include "channel_sums_cuda.h"

namespace anyop::cuda {
namespace {

template <typename W>
__global__ void __launch_bounds__(ChannelTeam::kThreads)
    JoinMoments(const __grid_constant__ SumParts p, int64_t C, W inverse, W* mean, W* var) {
  __shared__ W memory[ChannelTeam::kWarps][ChannelTeam::kChannels];
  WaitForWork();
  LetNextStart();
  const ChannelTeam team(p.parts);
  const bool inside = team.c < C;
  const W* from = static_cast<const W*>(p.sums) + 2 * team.c;
  const auto share = [&](int64_t part) { return static_cast<W>(p.Elements(part)); };
  const W center = inverse * team.Sum(inside, memory, [&](int64_t part) {
    return share(part) * from[2 * part * C];
  });
  const W squares = team.Sum(inside, memory, [&](int64_t part) {
    const W far = from[2 * part * C] - center;
    return MulAdd(share(part) * far, far, from[2 * part * C + 1]);
  });
  if (team.y > 0 || !inside) return;
  mean[team.c] = center, var[team.c] = squares * inverse;
}

template <typename T, typename Args>
int32_t RunStats(const Args& args, AnyopCall* call, bool last) {
  using W = Wide<T>;
  auto *mean = static_cast<W*>(args.mean->data), *var = static_cast<W*>(args.var->data);
  const int64_t count = args.N * args.C * args.numel_S;
  if (args.C == 0) return kAnyopOk;
  if (count == 0) {
    const auto bytes = static_cast<size_t>(args.C) * sizeof(W);
    const int32_t status = Check(call, cudaMemsetAsync(mean, 0, bytes, StreamOf(call)), "clearing");
    return status ? status
                  : Check(call, cudaMemsetAsync(var, 0, bytes, StreamOf(call)), "clearing");
  }
  const ChannelSums<T> sums = {static_cast<const T*>(args.x->data),
                               nullptr,
                               nullptr,
                               nullptr,
                               nullptr,
                               args.C,
                               args.numel_S,
                               count,
                               false};
  SumParts parts;
  if (int32_t status = RunSums<T, true>(call, sums, last, &parts)) return status;
  const W inverse = static_cast<W>(static_cast<double>(args.C) / static_cast<double>(count));
  return ChannelTeam::LaunchFor(args.C).Run(call, JoinMoments<W>, parts, args.C, inverse, mean,
                                            var);
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_batch_norm_stats_cuda(const BatchNormStatsArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  return WithFloating(AnyopDtypeOf(args->x),
                      [&](auto zero) { return RunStats<decltype(zero)>(*args, call, false); });
}
extern "C" int32_t anyop_batch_norm_stats_channels_last_cuda(
    const BatchNormStatsChannelsLastArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  return WithFloating(AnyopDtypeOf(args->x),
                      [&](auto zero) { return RunStats<decltype(zero)>(*args, call, true); });
}
