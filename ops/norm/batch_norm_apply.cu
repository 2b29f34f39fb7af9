// SPDX-License-Identifier: Apache-2.0
// batch_norm_apply and batch_norm_apply_channels_last on CUDA: one read of each input, one write of
// each result (channel_chunks_cuda.h).
#include "anyop/ops/batch_norm_apply.h"
#include "anyop/ops/batch_norm_apply_channels_last.h"
#include "channel_chunks_cuda.h"

namespace anyop::cuda {
namespace {

template <typename T>
struct Application {
  using W = Wide<T>;
  const T *x, *residual;
  T* out;
  uint8_t* mask;
  const W *mean, *rstd;
  OfChannels weight, bias;
  bool relu, aligned;
  Chunks chunks;
};
template <typename W>
struct Normal {
  W mean, scale, bias;
};

template <typename T, Order kOrder>
__global__ void __launch_bounds__(Chunks::kThreads)
    Apply(const __grid_constant__ Application<T> p) {
  using W = Wide<T>;
  WaitForWork();
  LetNextStart();
  const int64_t count = p.chunks.count;
  struct Inputs {
    Piece<W, kChunk> x, residual;
  };
  const auto make = [&](int64_t c) {
    return Normal<W>{p.mean[c], p.rstd[c] * p.weight.template At<W>(c, W(1)),
                     p.bias.template At<W>(c, W(0))};
  };
  const auto read = [&](int64_t chunk) {
    Inputs in = {ReadChunk(p.x, chunk * kChunk, count, p.aligned), {}};
    if (p.residual) in.residual = ReadChunk(p.residual, chunk * kChunk, count, p.aligned);
    return in;
  };
  p.chunks.template ForEach<kOrder>(make, read, [&](int64_t chunk, Inputs in, const auto& numbers) {
    const int64_t at = chunk * kChunk;
    Piece<W, kChunk>& z = in.x;
    unsigned bits = 0;
#pragma unroll
    for (int k = 0; k < kChunk; ++k) {
      const Normal<W>& n = numbers(k);
      z.at[k] = MulAdd(z.at[k] - n.mean, n.scale, n.bias) + in.residual.at[k];
      const bool passes = !(z.at[k] <= 0);
      if (at + k < count) bits |= static_cast<unsigned>(passes) << k;
      if (p.relu && !passes) z.at[k] = 0;
    }
    WriteChunk(p.out, at, count, p.aligned, z);
    if (p.mask) p.mask[chunk] = static_cast<uint8_t>(bits);
  });
}

template <typename T, typename Args>
int32_t RunApply(const Args& args, AnyopCall* call, bool last) {
  using W = Wide<T>;
  const int64_t count = args.N * args.C * args.numel_S;
  if (count == 0) return kAnyopOk;
  Limits limits;
  if (int32_t status = ReadLimits(call, &limits)) return status;
  const auto* residual = static_cast<const T*>(args.residual ? args.residual->data : nullptr);
  const auto* x = static_cast<const T*>(args.x->data);
  auto* out = static_cast<T*>(args.out->data);
  const Application<T> p = {x,
                            residual,
                            out,
                            const_cast<uint8_t*>(MaskOf(args.mask)),
                            static_cast<const W*>(args.mean->data),
                            static_cast<const W*>(args.rstd->data),
                            OfChannels(args.weight),
                            OfChannels(args.bias),
                            args.relu != 0,
                            IsAligned(x, 16) && IsAligned(residual, 16) && IsAligned(out, 16),
                            Chunks(args.C, args.numel_S, count, last, limits)};
  return WithOrder(p.chunks.order, [&](auto order) {
    return p.chunks.LaunchFor().Run(call, Apply<T, order.value>, p);
  });
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_batch_norm_apply_cuda(const BatchNormApplyArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  return WithFloating(AnyopDtypeOf(args->x),
                      [&](auto zero) { return RunApply<decltype(zero)>(*args, call, false); });
}
extern "C" int32_t anyop_batch_norm_apply_channels_last_cuda(
    const BatchNormApplyChannelsLastArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  return WithFloating(AnyopDtypeOf(args->x),
                      [&](auto zero) { return RunApply<decltype(zero)>(*args, call, true); });
}
