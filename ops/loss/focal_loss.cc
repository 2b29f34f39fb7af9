// SPDX-License-Identifier: Apache-2.0
// focal_loss on the CPU: a thread takes parts of 64 rows, whose sums are added in order: the same
// bits for any number of threads.
#include "anyop/ops/focal_loss.h"

#include "anyop/cpu/math.h"
#include "anyop/cpu/rows.h"
#include "focal_numbers.h"
#include "targets.h"

namespace anyop::cpu {
namespace {

constexpr int64_t kRowsOfPart = 64;

struct Work {
  const FocalLossArgs& args;
  Targets targets;
  double* sums;  // of parts
};

// The loss of one logit and its slope. sign: -1 of the target, else 1.
template <typename Wide>
struct Term {
  Wide sign, weight, gamma, half_smoothing;

  // log(1 + e) for 0 <= e <= 1, to its last digits where e is small.
  static Wide LogOfOneMore(Wide e) {
    const Wide u = 1 + e;
    return u == 1 ? e : Log(u) * (e / (u - 1));
  }
  void operator()(Wide x, Wide* loss, Wide* slope) const {
    const Wide z = sign * x, e = Exp2Negative(-Magnitude(z) * kLog2E<Wide>);
    const Wide rest = LogOfOneMore(e), inverse = 1 / (1 + e);
    const Wide below = z < 0 ? z : Wide{0}, above = z - below;
    const Wide q = (z < 0 ? e : Wide{1}) * inverse, other = (z < 0 ? Wide{1} : e) * inverse;
    const Wide factor = weight * Exp2Negative(gamma * (below - rest) * kLog2E<Wide>);
    const Wide entropy = above + rest - half_smoothing * z;
    *loss = factor * entropy;
    *slope = sign * factor * (gamma * other * entropy + q - half_smoothing);
  }
};

// The sum of n terms of one kind; their slopes go to out.
template <typename Wide>
inline Wide Terms(const Term<Wide>& term, int64_t n, const Wide* x, Wide* out) {
  Wide losses[kBlock];
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    Wide loss, slope;
    term(x[i], &loss, &slope);
    losses[i] = loss;
    out[i] = slope;
  }
  return SumBlock(n, [](Wide v) { return v; }, losses);
}

template <typename Wide>
inline double LossOfRow(const Work& work, int64_t row) {
  const FocalLossArgs& args = work.args;
  const FocalNumbers<Wide> numbers(args);
  const Rows x(args.x), partial(args.partial);
  const Term<Wide> of_others = {1, 1 - numbers.alpha, numbers.gamma, numbers.half_smoothing},
                   of_target = {-1, numbers.alpha, numbers.gamma, numbers.half_smoothing};
  RowReader<Wide> in(x.dtype(), x[row], args.V);
  RowWriter<Wide> out(partial.dtype(), partial[row]);
  const int64_t target = work.targets[row], counted = target == kNoFocalLoss ? 0 : args.classes;
  double sum = 0;
  ForBlocks(args.V, [&](int64_t at, int64_t size) {
    Wide* to = out.Target(at);
    const int64_t left = counted - at, n = left < 0 ? 0 : left < size ? left : size;
    const Wide* z = in.Read(at, size);
    const int64_t own = target >= at && target < at + n ? target - at : n;
    sum += Terms(of_others, own, z, to);
    if (own < n) {
      Wide loss;
      of_target(z[own], &loss, to + own);
      sum += loss;
      sum += Terms(of_others, n - own - 1, z + own + 1, to + own + 1);
    }
    for (int64_t i = n; i < size; ++i) to[i] = 0;
    out.Write(at, size);
  });
  return sum;
}

ANYOP_CPU_CLONES void Run(const Work* work, int64_t begin, int64_t end) {
  WithFloat(AnyopDtypeOf(work->args.x), [&](auto wide) {
    for (int64_t part = begin; part < end; ++part) {
      const int64_t first = part * kRowsOfPart, left = work->args.rows - first;
      double sum = 0;
      for (int64_t row = first; row < first + (left < kRowsOfPart ? left : kRowsOfPart); ++row)
        sum += LossOfRow<decltype(wide)>(*work, row);
      work->sums[part] = sum;
    }
  });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_focal_loss_cpu(const FocalLossArgs* args, AnyopCall* call) {
  using namespace anyop;
  if (const int32_t status = CheckFocalNumbers(call, *args)) return status;
  const Targets targets(args->target, kNoFocalLoss);
  if (const int32_t status =
          CheckTargets(call, *args->target, targets, args->rows, args->classes, -1))
    return status;
  const int64_t parts = (args->rows + cpu::kRowsOfPart - 1) / cpu::kRowsOfPart;
  const int64_t bytes = parts * int64_t{sizeof(double)};
  auto* sums = static_cast<double*>(call->workspace(call, bytes));
  if (!sums && bytes) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  const cpu::Work work = {*args, targets, sums};
  cpu::RunRows(call, &work, parts, cpu::kRowsOfPart * args->V, cpu::Run);
  double sum = 0;
  for (int64_t part = 0; part < parts; ++part) sum += sums[part];
  cpu::WithFloat(AnyopDtypeOf(args->loss), [&](auto wide) {
    using Wide = decltype(wide);
    const double divisor = *static_cast<const Wide*>(args->num_positives->data);
    *static_cast<Wide*>(args->loss->data) = static_cast<Wide>(sum / divisor);
  });
  return kAnyopOk;
}
