// SPDX-License-Identifier: Apache-2.0
// batch_norm_combine on CUDA: a thread for each channel, the processes one after the other.
#include "anyop/ops/batch_norm_combine.h"
#include "channel_planes_cuda.h"

namespace anyop::cuda {
namespace {

template <typename W>
struct Combine {
  const W *means, *vars;
  Counts count;
  char *running_mean, *running_var;
  AnyopDtype mean_kind, var_kind;
  const float* momentum;
  W *mean, *var, *rstd;
  int64_t P, C, of_mean, of_var;
  W eps;
};

template <typename W>
__device__ void Update(char* running, AnyopDtype kind, int64_t c, W momentum, W found) {
  if (!running) return;
  const W old = ReadFloating<W>(running, c, kind);
  WriteFloating<W>(running, c, kind, MulAdd(momentum, found, (1 - momentum) * old));
}

template <typename W>
__global__ void __launch_bounds__(128) CombineChannels(const __grid_constant__ Combine<W> p) {
  WaitForWork();
  LetNextStart();
  const int64_t c = int64_t{blockIdx.x} * 128 + threadIdx.x;
  if (c >= p.C) return;
  W total = 0, mean = 0, squares = 0;
  for (int64_t i = 0; i < p.P; ++i) {
    const W count = p.count.template At<W>(i);
    if (count > 0) total += count, mean = MulAdd(count, p.means[i * p.of_mean + c], mean);
  }
  const W inverse = total > 0 ? 1 / total : W(0);
  mean *= inverse;
  for (int64_t i = 0; i < p.P; ++i) {
    const W count = p.count.template At<W>(i), far = p.means[i * p.of_mean + c] - mean;
    if (count > 0) squares = MulAdd(count, MulAdd(far, far, p.vars[i * p.of_var + c]), squares);
  }
  p.mean[c] = mean;
  p.var[c] = squares * inverse;
  p.rstd[c] = ReciprocalRoot(MulAdd(squares, inverse, p.eps));
  if (!(total > 0)) return;
  const W momentum = p.momentum ? static_cast<W>(*p.momentum) : W(0.1);
  Update(p.running_mean, p.mean_kind, c, momentum, mean);
  Update(p.running_var, p.var_kind, c, momentum, squares / (total > 1 ? total - 1 : W(1)));
}

template <typename W>
int32_t Run(const BatchNormCombineArgs& args, AnyopCall* call) {
  if (args.C == 0) return kAnyopOk;
  const auto data = [](const AnyopTensor* t) { return t ? static_cast<char*>(t->data) : nullptr; };
  const auto kind = [](const AnyopTensor* t) { return t ? AnyopDtypeOf(t) : kAnyopNoDtype; };
  const Combine<W> p = {static_cast<const W*>(args.mean->data),
                        static_cast<const W*>(args.var->data),
                        Counts(args.count),
                        data(args.running_mean),
                        data(args.running_var),
                        kind(args.running_mean),
                        kind(args.running_var),
                        reinterpret_cast<const float*>(data(args.momentum)),
                        static_cast<W*>(args.out_mean->data),
                        static_cast<W*>(args.out_var->data),
                        static_cast<W*>(args.rstd->data),
                        args.P,
                        args.C,
                        args.mean->strides[0],
                        args.var->strides[0],
                        EpsilonOf<W>(args.eps)};
  const Launch launch{dim3(static_cast<unsigned>(CeilDiv(args.C, 128))), dim3(128), 0, true};
  return launch.Run(call, CombineChannels<W>, p);
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_batch_norm_combine_cuda(const BatchNormCombineArgs* args,
                                                 AnyopCall* call) {
  using namespace anyop::cuda;
  return AnyopDtypeOf(args->mean) == kAnyopFloat64 ? Run<double>(*args, call)
                                                   : Run<float>(*args, call);
}
