// SPDX-License-Identifier: Apache-2.0
// batch_norm_backward and batch_norm_backward_channels_last on CUDA: one read of each input, one
// write of each result (channel_chunks_cuda.h).
#include "anyop/ops/batch_norm_backward.h"
#include "anyop/ops/batch_norm_backward_channels_last.h"
#include "channel_chunks_cuda.h"

namespace anyop::cuda {
namespace {

template <typename T>
struct Problem {
  using W = Wide<T>;
  const T *grad_out, *x;
  T *grad_x, *grad_residual;
  const uint8_t* mask;
  const W *mean, *rstd, *sum_dy, *sum_dy_xmu;
  OfChannels weight;
  Counts counts;
  bool aligned;
  Chunks chunks;
};
// grad_x = a * d - b - e * (x - mean)
template <typename W>
struct Slopes {
  W mean, a, b, e;
};

template <typename T, Order kOrder>
__global__ void __launch_bounds__(Chunks::kThreads)
    WriteGradient(const __grid_constant__ Problem<T> p) {
  using W = Wide<T>;
  WaitForWork();
  LetNextStart();
  const int64_t count = p.chunks.count;
  struct Inputs {
    Piece<W, kChunk> d, x;
    unsigned bits;  // of the mask
  };
  W total = 0;
  for (int64_t i = 0; i < p.counts.P; ++i) total += p.counts.template At<W>(i);
  const W share = total > 0 ? 1 / total : W(0);
  const auto make = [&](int64_t c) {
    const W rstd = p.rstd[c], a = rstd * p.weight.template At<W>(c, W(1)), of_all = a * share;
    return Slopes<W>{p.mean[c], a, p.sum_dy ? of_all * p.sum_dy[c] : W(0),
                     p.sum_dy_xmu ? of_all * rstd * rstd * p.sum_dy_xmu[c] : W(0)};
  };
  const auto read = [&](int64_t chunk) {
    Inputs in = {ReadChunk(p.grad_out, chunk * kChunk, count, p.aligned), {}, 0};
    if (p.mask) in.bits = p.mask[chunk];
    if (p.grad_x) in.x = ReadChunk(p.x, chunk * kChunk, count, p.aligned);
    return in;
  };
  p.chunks.template ForEach<kOrder>(make, read, [&](int64_t chunk, Inputs in, const auto& numbers) {
    const int64_t at = chunk * kChunk;
    Piece<W, kChunk>& d = in.d;
    if (p.mask) {
#pragma unroll
      for (int k = 0; k < kChunk; ++k) d.at[k] = in.bits >> k & 1 ? d.at[k] : W(0);
    }
    if (p.grad_residual) WriteChunk(p.grad_residual, at, count, p.aligned, d);
    if (!p.grad_x) return;
#pragma unroll
    for (int k = 0; k < kChunk; ++k) {
      const Slopes<W>& n = numbers(k);
      d.at[k] = MulAdd(n.a, d.at[k], -MulAdd(n.e, in.x.at[k] - n.mean, n.b));
    }
    WriteChunk(p.grad_x, at, count, p.aligned, d);
  });
}

template <typename T, typename Args>
int32_t RunBackward(const Args& args, AnyopCall* call, bool last) {
  using W = Wide<T>;
  const int64_t count = args.N * args.C * args.numel_S;
  if (count == 0) return kAnyopOk;
  Limits limits;
  if (int32_t status = ReadLimits(call, &limits)) return status;
  const auto data = [](const AnyopTensor* t) { return t ? t->data : nullptr; };
  bool aligned = true;
  const AnyopTensor* const all[] = {args.grad_out, args.x, args.grad_x, args.grad_residual};
  for (const AnyopTensor* one : all)
    aligned = aligned && IsAligned(static_cast<const char*>(data(one)), 16);
  const Problem<T> p = {static_cast<const T*>(args.grad_out->data),
                        static_cast<const T*>(args.x->data),
                        static_cast<T*>(data(args.grad_x)),
                        static_cast<T*>(data(args.grad_residual)),
                        MaskOf(args.mask),
                        static_cast<const W*>(args.mean->data),
                        static_cast<const W*>(args.rstd->data),
                        static_cast<const W*>(data(args.sum_dy)),
                        static_cast<const W*>(data(args.sum_dy_xmu)),
                        OfChannels(args.weight),
                        Counts(args.count),
                        aligned,
                        Chunks(args.C, args.numel_S, count, last, limits)};
  return WithOrder(p.chunks.order, [&](auto order) {
    return p.chunks.LaunchFor().Run(call, WriteGradient<T, order.value>, p);
  });
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_batch_norm_backward_cuda(const BatchNormBackwardArgs* args,
                                                  AnyopCall* call) {
  using namespace anyop::cuda;
  return WithFloating(AnyopDtypeOf(args->x),
                      [&](auto zero) { return RunBackward<decltype(zero)>(*args, call, false); });
}
extern "C" int32_t anyop_batch_norm_backward_channels_last_cuda(
    const BatchNormBackwardChannelsLastArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  return WithFloating(AnyopDtypeOf(args->x),
                      [&](auto zero) { return RunBackward<decltype(zero)>(*args, call, true); });
}
