// SPDX-License-Identifier: Apache-2.0
// batch_norm_reduce and batch_norm_reduce_channels_last on CUDA: the sums of parts
// (channel_sums_cuda.h), added in order.
#include "anyop/ops/batch_norm_reduce.h"
#include "anyop/ops/batch_norm_reduce_channels_last.h"
#include "channel_sums_cuda.h"

namespace anyop::cuda {
namespace {

template <typename W>
struct Reduced {
  const W* rstd;
  W *sum_dy, *sum_dy_xmu;
  char *grad_weight, *grad_bias;  // NULL: not wanted
  AnyopDtype kind;
};
template <typename W>
__global__ void __launch_bounds__(ChannelTeam::kThreads)
    JoinSums(const __grid_constant__ SumParts p, int64_t C, const __grid_constant__ Reduced<W> to) {
  __shared__ W memory[ChannelTeam::kWarps][ChannelTeam::kChannels];
  WaitForWork();
  LetNextStart();
  const ChannelTeam team(p.parts);
  const int64_t c = team.c;
  const bool inside = c < C;
  const W* from = static_cast<const W*>(p.sums) + 2 * c;
  const W sum = team.Sum(inside, memory, [&](int64_t part) { return from[2 * part * C]; });
  const W product = team.Sum(inside, memory, [&](int64_t part) { return from[2 * part * C + 1]; });
  if (team.y > 0 || !inside) return;
  to.sum_dy[c] = sum, to.sum_dy_xmu[c] = product;
  if (to.grad_bias) WriteFloating<W>(to.grad_bias, c, to.kind, sum);
  if (to.grad_weight) WriteFloating<W>(to.grad_weight, c, to.kind, product * to.rstd[c]);
}

template <typename T, typename Args>
int32_t RunReduce(const Args& args, AnyopCall* call, bool last) {
  using W = Wide<T>;
  if (args.C == 0) return kAnyopOk;
  const auto data = [](const AnyopTensor* t) { return t ? static_cast<char*>(t->data) : nullptr; };
  const AnyopTensor* one = args.grad_weight ? args.grad_weight : args.grad_bias;
  const Reduced<W> to = {static_cast<const W*>(args.rstd->data),
                         static_cast<W*>(args.sum_dy->data),
                         static_cast<W*>(args.sum_dy_xmu->data),
                         data(args.grad_weight),
                         data(args.grad_bias),
                         one ? AnyopDtypeOf(one) : kAnyopFloat32};
  const ChannelSums<T> sums = {static_cast<const T*>(args.x->data),
                               static_cast<const T*>(args.grad_out->data),
                               MaskOf(args.mask),
                               static_cast<const W*>(args.mean->data),
                               nullptr,
                               args.C,
                               args.numel_S,
                               args.N * args.C * args.numel_S,
                               false};
  SumParts parts = {};  // none: the sums are 0
  if (sums.count > 0) {
    if (int32_t status = RunSums<T, false>(call, sums, last, &parts)) return status;
  }
  return ChannelTeam::LaunchFor(args.C).Run(call, JoinSums<W>, parts, args.C, to);
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_batch_norm_reduce_cuda(const BatchNormReduceArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  return WithFloating(AnyopDtypeOf(args->x),
                      [&](auto zero) { return RunReduce<decltype(zero)>(*args, call, false); });
}
extern "C" int32_t anyop_batch_norm_reduce_channels_last_cuda(
    const BatchNormReduceChannelsLastArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  return WithFloating(AnyopDtypeOf(args->x),
                      [&](auto zero) { return RunReduce<decltype(zero)>(*args, call, true); });
}
