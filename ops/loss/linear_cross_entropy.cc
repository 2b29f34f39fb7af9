// SPDX-License-Identifier: Apache-2.0
// linear_cross_entropy on the CPU: a product gives the logits of a block of classes for all rows;
// each thread then takes rows, and joins 1,024 logits at a time to what it knows of a row: the
// greatest, the sum of exponentials (in float64), the target's logit. Memory: class_blocks.h.
#include "anyop/ops/linear_cross_entropy.h"

#include "class_blocks.h"
#include "loss_numbers.h"
#include "reused_workspace.h"
#include "targets.h"

namespace anyop::cpu {
namespace {

// What is known of a row: the greatest logit, the sum of exp(logit - most), that of the logits.
struct State {
  double most, sum, total, target;
};

struct Work {
  const LinearCrossEntropyArgs& args;
  Targets targets;
  State* states;
  void* logits;
  int64_t first, n;  // classes of the block
};

// Joins parts of a row, as in Milakov & Gimelshein 2018, arXiv:1805.02867.
inline void Join(State* state, double most, double sum) {
  if (most == -Bits<double>::kInfinity) {
    state->sum += sum;  // 0, or NaN
  } else if (most > state->most) {
    state->sum = state->sum * Exp(state->most - most) + sum;
    state->most = most;
  } else {
    state->sum += sum * Exp(most - state->most);
  }
}

template <typename Wide>
inline void AddRow(const Work& work, int64_t row) {
  const LinearCrossEntropyArgs& args = work.args;
  State* state = work.states + row;
  if (work.first == 0) *state = {-Bits<double>::kInfinity, 0, 0, 0};
  Wide* logits = static_cast<Wide*>(work.logits) + row * work.n;
  const Cap<Wide> cap(args.softcap);
  const auto greater = [](Wide a, Wide b) { return a < b ? b : a; };
  ForBlocks(work.n, [&](int64_t at, int64_t size) {
    Wide* z = logits + at;
    if (args.softcap > 0) Apply(size, cap, z, z);
    const Wide lowest = -Bits<Wide>::kInfinity;
    const Wide most = FoldBlock(lowest, greater, [](Wide v) { return v; }, size, z);
    const Wide base = most == lowest ? Wide{0} : most;
    const auto power = [base](Wide v) { return Exp2Negative((v - base) * kLog2E<Wide>); };
    Join(state, most, SumBlock(size, power, z));
    if (args.label_smoothing > 0) state->total += SumBlock(size, [](Wide v) { return v; }, z);
  });
  const int64_t target = work.targets[row] - work.first;
  if (target >= 0 && target < work.n) state->target = logits[target];
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
    const State& s = work.states[row];
    const double log_sum = s.most + Log(s.sum), smoothing = args.label_smoothing;
    lse[row] = static_cast<Wide>(log_sum);
    double of_row = log_sum - (1 - smoothing) * s.target;
    if (smoothing > 0) of_row -= smoothing * (s.total / static_cast<double>(args.V));
    if (args.z_loss != 0) of_row += args.z_loss * log_sum * log_sum;
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
  using cpu::State;
  const int64_t rows = args->rows, V = args->V;
  const Targets targets(args->target, args->ignore_index);
  if (const int32_t status = CheckLossNumbers(call, args->label_smoothing, args->softcap))
    return status;
  if (const int32_t status = CheckTargets(call, *args->target, targets, rows, V)) return status;
  const ClassBlocks blocks(args->x, args->weight, args->bias, rows, V, args->K);
  const int64_t state_bytes = rows * int64_t{sizeof(State)}, bytes = state_bytes + blocks.bytes();
  auto* memory = static_cast<char*>(call->workspace(call, bytes));
  if (!memory && bytes) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  auto* states = reinterpret_cast<State*>(memory + blocks.bytes());
  cpu::Work work = {*args, targets, states, memory, 0, 0};
  for (int64_t row = 0; V == 0 && row < rows; ++row)
    states[row] = {-cpu::Bits<double>::kInfinity, 0, 0, 0};
  ReusedWorkspace reused(call);
  for (; work.first < V; work.first += blocks.most) {
    work.n = std::min(blocks.most, V - work.first);
    if (const int32_t status = blocks.Multiply(reused.NextStep(), work.first, work.n, memory))
      return status;
    cpu::RunRows(call, &work, rows, work.n, cpu::AddRows);
  }
  return cpu::RunRows(call, &work, rows, 16, cpu::FinishRows);
}
