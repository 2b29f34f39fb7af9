// SPDX-License-Identifier: Apache-2.0
// linear_cross_entropy on the CPU: a product gives the logits of a block of classes for all rows;
// each thread then takes rows, and joins 1,024 logits at a time to what it knows of a row: the
// greatest, the sum of exponentials (in float64), the target's logit. Memory: class_blocks.h.
#include "anyop/ops/linear_cross_entropy.h"

#include "class_blocks.h"
#include "class_sums.h"
#include "loss_numbers.h"
#include "reused_workspace.h"
#include "targets.h"

namespace anyop::cpu {
namespace {

struct Work {
  const LinearCrossEntropyArgs& args;
  Targets targets;
  ClassSums* sums;
  void* logits;
  int64_t first, n;  // classes of the block
};

template <typename Wide>
inline void AddRow(const Work& work, int64_t row) {
  const LinearCrossEntropyArgs& args = work.args;
  ClassSums* sums = work.sums + row;
  if (work.first == 0) *sums = {};
  Wide* logits = static_cast<Wide*>(work.logits) + row * work.n;
  const Cap<Wide> cap(args.softcap);
  ForBlocks(work.n, [&](int64_t at, int64_t size) {
    Wide* z = logits + at;
    if (args.softcap > 0) Apply(size, cap, z, z);
    sums->Add(size, z, args.label_smoothing > 0);
  });
  const int64_t target = work.targets[row] - work.first;
  if (target >= 0 && target < work.n) sums->target = logits[target];
}

ANYOP_CPU_CLONES void AddRows(const Work* work, int64_t begin, int64_t end) {
  WithFloat(AnyopDtypeOf(work->args.loss), [&](auto wide) {
    for (int64_t row = begin; row < end; ++row) AddRow<decltype(wide)>(*work, row);
  });
}

template <typename Wide>
inline void Finish(const Work& work, int64_t begin, int64_t end) {
  const LinearCrossEntropyArgs& args = work.args;
  auto* loss = static_cast<Wide*>(args.loss->data);
  auto* lse = static_cast<Wide*>(args.lse->data);
  for (int64_t row = begin; row < end; ++row) {
    const ClassSums& sums = work.sums[row];
    lse[row] = static_cast<Wide>(sums.log_sum());
    const double of_row = sums.Loss(args.V, args.label_smoothing, args.z_loss);
    loss[row] = work.targets[row] == work.targets.ignored ? Wide{0} : static_cast<Wide>(of_row);
  }
}

ANYOP_CPU_CLONES void FinishRows(const Work* work, int64_t begin, int64_t end) {
  WithFloat(AnyopDtypeOf(work->args.loss),
            [&](auto wide) { Finish<decltype(wide)>(*work, begin, end); });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_linear_cross_entropy_cpu(const LinearCrossEntropyArgs* args,
                                                  AnyopCall* call) {
  using namespace anyop;
  using cpu::ClassSums;
  const int64_t rows = args->rows, V = args->V;
  const Targets targets(args->target, args->ignore_index);
  if (const int32_t status = CheckLossNumbers(call, args->label_smoothing, args->softcap))
    return status;
  if (const int32_t status = CheckTargets(call, *args->target, targets, rows, V)) return status;
  const ClassBlocks blocks(args->x, args->weight, args->bias, rows, V, args->K);
  const int64_t state_bytes = rows * int64_t{sizeof(ClassSums)},
                bytes = state_bytes + blocks.bytes();
  auto* memory = static_cast<char*>(call->workspace(call, bytes));
  if (!memory && bytes) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  auto* sums = reinterpret_cast<ClassSums*>(memory + blocks.bytes());
  cpu::Work work = {*args, targets, sums, memory, 0, 0};
  for (int64_t row = 0; V == 0 && row < rows; ++row) sums[row] = {};
  ReusedWorkspace reused(call);
  for (; work.first < V; work.first += blocks.most) {
    work.n = std::min(blocks.most, V - work.first);
    if (const int32_t status = blocks.Multiply(reused.NextStep(), work.first, work.n, memory))
      return status;
    cpu::RunRows(call, &work, rows, work.n, cpu::AddRows);
  }
  return cpu::RunRows(call, &work, rows, 16, cpu::FinishRows);
}
