// SPDX-License-Identifier: Apache-2.0
// focal_loss on CUDA. A thread takes pieces of 16 bytes of a row, or single elements, and writes
// their slopes; each block adds the losses of its pieces, and a second kernel those of the blocks,
// in an order that depends on the shape alone. Each logit is read once, and its slope written.
#include "anyop/cuda/rows.h"
#include "anyop/cuda/walk.h"
#include "anyop/ops/focal_loss.h"
#include "focal_numbers.h"

namespace anyop::cuda {
namespace {

constexpr int kFocalThreads = 256, kMostFocalBlocks = 2048;

template <typename T>
struct Focal {
  using W = Wide<T>;
  const T* x;
  T* partial;
  const void* target;
  W* sums;  // of blocks
  int64_t pieces, pieces_of_row, classes;
  Divisor by_row;
  bool small, narrow,
      aligned;  // numbers of pieces below 2^31; targets of int32; partial to 16 bytes
  FocalNumbers<W> numbers;

  __device__ int64_t RowOf(int64_t piece) const {
    return small ? by_row.Divide(static_cast<uint32_t>(piece)) : piece / pieces_of_row;
  }
  __device__ int64_t TargetOf(int64_t row) const {
    return narrow ? static_cast<const int32_t*>(target)[row]
                  : static_cast<const int64_t*>(target)[row];
  }
  // The loss of one logit; *slope with respect to it.
  __device__ W Term(W v, bool is_target, W* slope) const {
    const W z = is_target ? -v : v, weight = is_target ? numbers.alpha : 1 - numbers.alpha;
    const W e = Exponential(-fabs(z)), rest = log1p(e), inverse = Reciprocal(1 + e);
    const W below = z < 0 ? z : W(0), above = z - below;
    const W q = (z < 0 ? e : W(1)) * inverse, other = (z < 0 ? W(1) : e) * inverse;
    const W factor = weight * Exponential(numbers.gamma * (below - rest));
    const W entropy = above + rest - numbers.half_smoothing * z;
    const W of_z = factor * (numbers.gamma * other * entropy + q - numbers.half_smoothing);
    *slope = is_target ? -of_z : of_z;
    return factor * entropy;
  }
};

template <typename T, int kPer>
__global__ void __launch_bounds__(kFocalThreads) AddFocal(const __grid_constant__ Focal<T> p) {
  using W = Wide<T>;
  __shared__ Partials<W> partials;
  RowTeam<W> team(kFocalThreads, partials);
  W sum = 0;
  for (int64_t piece = int64_t{blockIdx.x} * kFocalThreads + threadIdx.x; piece < p.pieces;
       piece += int64_t{gridDim.x} * kFocalThreads) {
    const int64_t row = p.RowOf(piece), first = (piece - row * p.pieces_of_row) * kPer;
    const int64_t target = p.TargetOf(row);
    const bool inside = target >= kNoFocalLoss && target < p.classes;
    const int64_t counted = inside && target != kNoFocalLoss ? p.classes : 0;
    const Piece<W, kPer> v = ReadPiece<kPer>(p.x + piece * kPer, true);
    Piece<W, kPer> slopes;
    W few = inside ? W(0) : static_cast<W>(NAN);
#pragma unroll
    for (int k = 0; k < kPer; ++k) {
      slopes.at[k] = 0;
      if (first + k < counted) few += p.Term(v.at[k], first + k == target, &slopes.at[k]);
    }
    WritePiece<kPer>(p.partial + piece * kPer, p.aligned, slopes);
    sum += few;
  }
  sum = team.Total(sum);
  if (threadIdx.x == 0) p.sums[blockIdx.x] = sum;
}

template <typename W>
__global__ void __launch_bounds__(kFocalThreads)
    FinishFocal(const W* sums, int count, const W* num_positives, W* loss) {
  __shared__ Partials<W> partials;
  RowTeam<W> team(kFocalThreads, partials);
  W sum = 0;
  for (int i = threadIdx.x; i < count; i += kFocalThreads) sum += sums[i];
  sum = team.Total(sum);
  if (threadIdx.x == 0) *loss = sum / *num_positives;
}

template <typename T>
int32_t Run(const FocalLossArgs& args, AnyopCall* call) {
  using W = Wide<T>;
  constexpr int kWhole = kPerVector<T>;
  // How sums are made depends on what is read, not on where results go.
  const bool whole = args.V % kWhole == 0 && IsAligned(static_cast<const T*>(args.x->data), 16);
  const int64_t of_row = whole ? args.V / kWhole : args.V, pieces = args.rows * of_row;
  const int64_t needed = CeilDiv(pieces, kFocalThreads);
  const int blocks = static_cast<int>(needed < kMostFocalBlocks ? needed : kMostFocalBlocks);
  auto* sums = static_cast<W*>(call->workspace(call, (blocks + 1) * int64_t{sizeof(W)}));
  if (!sums) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  Focal<T> p = {static_cast<const T*>(args.x->data),
                static_cast<T*>(args.partial->data),
                args.target->data,
                sums,
                pieces,
                of_row,
                args.classes,
                Divisor(),
                pieces < INT64_C(0x7fffffff),
                args.target->dtype_bits == 32,
                IsAligned(static_cast<const T*>(args.partial->data), 16),
                FocalNumbers<W>(args)};
  if (p.small && of_row > 0) p.by_row = Divisor(of_row);
  if (blocks > 0) {
    const Launch launch{dim3(static_cast<unsigned>(blocks)), dim3(kFocalThreads)};
    const int32_t status =
        whole ? launch.Run(call, AddFocal<T, kWhole>, p) : launch.Run(call, AddFocal<T, 1>, p);
    if (status) return status;
  }
  const Launch last{dim3(1), dim3(kFocalThreads)};
  return last.Run(call, FinishFocal<W>, static_cast<const W*>(sums), blocks,
                  static_cast<const W*>(args.num_positives->data),
                  static_cast<W*>(args.loss->data));
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_focal_loss_cuda(const FocalLossArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  if (const int32_t status = anyop::CheckFocalNumbers(call, *args)) return status;
  return WithFloating(AnyopDtypeOf(args->x),
                      [&](auto zero) { return Run<decltype(zero)>(*args, call); });
}
