// SPDX-License-Identifier: Apache-2.0
// batch_norm_combine on the CPU: a channel's processes one after the other, in float64.
#include "anyop/ops/batch_norm_combine.h"

#include "channel_planes.h"

namespace anyop::cpu {
namespace {

struct Work {
  const BatchNormCombineArgs& args;
  PlainRows x, var, running_mean, running_var;
  double momentum;
};

template <typename Wide>
inline void Update(const PlainRows& running, int64_t c, double momentum, double found) {
  if (!running.data) return;
  Wide old;
  ReadNumbers(running, c, 1, Wide{0}, &old);
  RowWriter<Wide> to(running.dtype, running.At(c));
  *to.Target(0) = static_cast<Wide>((1 - momentum) * old + momentum * found);
  to.Write(0, 1);
}

template <typename Wide>
inline void CombineChannel(const Work& work, int64_t c) {
  const BatchNormCombineArgs& args = work.args;
  const auto* means = reinterpret_cast<const Wide*>(work.x.data) + c;
  const auto* vars = reinterpret_cast<const Wide*>(work.var.data) + c;
  const int64_t of_mean = args.mean->strides[0], of_var = args.var->strides[0];
  double total = 0, mean = 0, squares = 0;
  for (int64_t p = 0; p < args.P; ++p) {
    const double count = CountOf(args.count, p);
    if (count > 0) total += count, mean += count * means[p * of_mean];
  }
  mean = total > 0 ? mean / total : 0;
  for (int64_t p = 0; p < args.P; ++p) {
    const double count = CountOf(args.count, p), far = means[p * of_mean] - mean;
    if (count > 0) squares += count * (vars[p * of_var] + far * far);
  }
  const double var = total > 0 ? squares / total : 0;
  static_cast<Wide*>(args.out_mean->data)[c] = static_cast<Wide>(mean);
  static_cast<Wide*>(args.out_var->data)[c] = static_cast<Wide>(var);
  static_cast<Wide*>(args.rstd->data)[c] = static_cast<Wide>(1 / __builtin_sqrt(var + args.eps));
  if (!(total > 0)) return;
  Update<Wide>(work.running_mean, c, work.momentum, mean);
  Update<Wide>(work.running_var, c, work.momentum, squares / (total > 1 ? total - 1 : 1));
}

ANYOP_CPU_CLONES void Channels(const Work* work, int64_t begin, int64_t end) {
  ForUnits(work, begin, end,
           [&](auto wide, int64_t c) { CombineChannel<decltype(wide)>(*work, c); });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_batch_norm_combine_cpu(const BatchNormCombineArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  const double momentum = args->momentum ? *static_cast<const float*>(args->momentum->data) : 0.1;
  const Work work = {*args,
                     PlainRows(args->mean),
                     PlainRows(args->var),
                     PlainRows(args->running_mean),
                     PlainRows(args->running_var),
                     momentum};
  return RunRows(call, &work, args->C, 8 * args->P + 8, Channels);
}
