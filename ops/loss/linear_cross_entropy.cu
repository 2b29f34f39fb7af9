// SPDX-License-Identifier: Apache-2.0
// linear_cross_entropy on CUDA: cuBLASLt gives the logits of a block of classes for all rows, in
// float32 (float64 of float64); then a block of threads for each row reads them once and joins
// them to what is known of the row: the greatest, the sum of exponentials, the target's logit. The
// order of all sums is fixed. Of a target outside nothing is read, and its loss is NaN.
//
// Memory: class_blocks_cuda.h, 16 bytes for each row, and the workspace of one product.
#include "anyop/ops/linear_cross_entropy.h"
#include "class_blocks_cuda.h"
#include "loss_numbers.h"
#include "reused_workspace.h"

namespace anyop::cuda {
namespace {

template <typename W>
struct State {
  W most, sum, total, target;

  // Joins a part of the row, as in Milakov & Gimelshein 2018, arXiv:1805.02867.
  __device__ void Join(W most_of_part, W sum_of_part) {
    if (most_of_part == W(-INFINITY)) {
      sum += sum_of_part;  // 0, or NaN
    } else if (most_of_part > most) {
      sum = sum * Exponential(most - most_of_part) + sum_of_part;
      most = most_of_part;
    } else {
      sum += sum_of_part * Exponential(most_of_part - most);
    }
  }
};

template <typename T>
struct ForwardBlock : LossBlock<T> {
  using W = Wide<T>;
  using LossBlock<T>::LossBlock;
  State<W>* states;
  W *loss, *lse;

  // One thread, behind the last block.
  __device__ void Finish(int64_t row, const State<W>& s, int64_t target) const {
    const W log_sum = s.most + log(s.sum);
    lse[row] = log_sum;
    W of_row = log_sum - (1 - this->smoothing) * s.target;
    if (this->smoothing > 0) of_row -= this->smoothing * (s.total / static_cast<W>(this->V));
    if (this->z_loss != 0) of_row += this->z_loss * log_sum * log_sum;
    if (!this->Inside(target)) of_row = static_cast<W>(NAN);
    loss[row] = target == this->ignored ? W(0) : of_row;
  }
};

template <typename T, int kPer>
__global__ void __launch_bounds__(kLossThreads)
    AddClasses(const __grid_constant__ ForwardBlock<T> p) {
  using W = Wide<T>;
  __shared__ Partials<W> partials;
  RowTeam<W> team(blockDim.x, partials);
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const W* logits = p.logits + row * p.n;
    W most = static_cast<W>(-INFINITY), sum = 0, total = 0;
    for (int at = threadIdx.x * kPer; at < p.n; at += blockDim.x * kPer) {
      const Vector<W, kPer> v = p.template Read<kPer>(logits, at);
      const W before = most;
#pragma unroll
      for (int k = 0; k < kPer; ++k) most = fmax(most, v.at[k]);
      const W base = most == W(-INFINITY) ? W(0) : most;
      sum *= Exponential(before - base);
#pragma unroll
      for (int k = 0; k < kPer; ++k) sum += Exponential(v.at[k] - base), total += v.at[k];
    }
    const W greatest = team.Greatest(most);
    sum *= Exponential(most - (greatest == W(-INFINITY) ? W(0) : greatest));
    team.Totals(sum, total);
    if (threadIdx.x) continue;
    State<W> state = {static_cast<W>(-INFINITY), 0, 0, 0};
    if (p.first) state = p.states[row];
    state.Join(greatest, sum);
    state.total += total;
    const int64_t target = p.TargetOf(row);
    if (p.Inside(target) && target >= p.first && target < p.first + p.n)
      state.target = p.template Read<1>(logits, static_cast<int>(target - p.first)).at[0];
    if (p.first + p.n < p.V) {
      p.states[row] = state;
    } else {
      p.Finish(row, state, target);
    }
  }
}

template <typename T>
int32_t Run(const LinearCrossEntropyArgs& args, AnyopCall* call) {
  using W = Wide<T>;
  const int64_t rows = args.rows, V = args.V, K = args.K, most = ClassesOfBlock(rows, V);
  const int64_t logit_bytes = (rows * most * int64_t{sizeof(W)} + 63) / 64 * 64;
  auto* memory =
      static_cast<char*>(call->workspace(call, logit_bytes + rows * int64_t{sizeof(State<W>)}));
  if (!memory) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  ForwardBlock<T> p(args, rows);
  p.logits = reinterpret_cast<W*>(memory);
  p.states = reinterpret_cast<State<W>*>(memory + logit_bytes);
  p.loss = From<W>(args.loss, 0);
  p.lse = From<W>(args.lse, 0);
  ReusedWorkspace reused(call);
  do {  // once, too, where there are no classes
    p.n = static_cast<int>(std::min(most, V - p.first));
    if (args.bias) p.bias = From<T>(args.bias, p.first);
    int32_t status = Multiply(reused.NextStep(),
                              LogitsOf<T>(args.x, args.weight, rows, K, p.first, p.n, p.logits));
    if (!status)
      status = WithPieces<T>(
          p, [&](auto per) { return LossLaunch(rows, p.n, per).Run(call, AddClasses<T, per>, p); });
    if (status) return status;
    p.first += p.n;
  } while (p.first < V);
  return kAnyopOk;
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_linear_cross_entropy_cuda(const LinearCrossEntropyArgs* args,
                                                   AnyopCall* call) {
  using namespace anyop::cuda;
  if (const int32_t status = anyop::CheckLossNumbers(call, args->label_smoothing, args->softcap))
    return status;
  if (args->rows == 0) return kAnyopOk;
  return WithFloating(AnyopDtypeOf(args->x),
                      [&](auto zero) { return Run<decltype(zero)>(*args, call); });
}
