// SPDX-License-Identifier: Apache-2.0
// rms_norm_backward on CUDA: each row is read once, and its scale is computed again; sums are
// float32 (float64) and added in a fixed order, so the same call gives the same bits.
//
// Who does what: as many blocks as fit stay on the device and walk over rows block, block + blocks,
// ..., two in a turn. The rows are copied to shared memory ahead (anyop/cuda_ring.h). A thread owns
// up to kVectors vectors of 16 bytes of every row, at places thread, thread + threads, ..., and
// keeps weight and its sums of grad_weight in registers. A turn needs one reduction of four sums.
// Each block ends by writing its sums, which a second kernel adds in order. 3 s bytes are moved an
// element of size s. Rows that are too long, not aligned or have several strides take
// rms_norm_backward_any.h, which reads them up to three times.
#include "anyop/cuda_ring.h"
#include "anyop/ops/rms_norm_backward.h"
#include "rms_norm_backward_any.h"

namespace anyop::cuda {
namespace {

// Sums of kCount values (2 or 4) over the block; every thread gets the same bits. In each warp the
// lanes of one half take over half of the values, so that a shuffle moves two of them; of four, the
// quarters do.
template <typename W, int kCount>
__device__ W SumLanesOf(const W (&v)[kCount]) {
  const bool low = threadIdx.x % 32 < 16;
  W mine[kCount / 2];
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i)
    mine[i] =
        (low ? v[2 * i] : v[2 * i + 1]) + __shfl_xor_sync(~0u, low ? v[2 * i + 1] : v[2 * i], 16);
  if constexpr (kCount == 4) {
    const bool first = threadIdx.x % 16 < 8;
    mine[0] = (first ? mine[0] : mine[1]) + __shfl_xor_sync(~0u, first ? mine[1] : mine[0], 8);
  }
  for (int step = kCount == 4 ? 4 : 8; step; step /= 2)
    mine[0] += __shfl_xor_sync(~0u, mine[0], step);
  return mine[0];
}
template <typename W, int kCount>
__device__ void SumAll(W (&v)[kCount], W (&partial)[kCount][kMaxWarps]) {
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const W mine = SumLanesOf(v);
  // Lane 0 has the first value, 16 the second, 8 the third, 24 the fourth.
  if (lane % (32 / kCount) == 0) partial[lane / 16 + lane % 16 / 8 * 2][threadIdx.x / 32] = mine;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kCount; ++i) v[i] = lane < warps ? partial[i][lane] : W(0);
  const W total = SumLanesOf(v);
#pragma unroll
  for (int i = 0; i < kCount; ++i) v[i] = __shfl_sync(~0u, total, i % 2 * 16 + i / 2 * 8);
}

constexpr int kMaxThreads = 512;  // with 128 registers each: one such block on a multiprocessor
// Rows of one turn, where a thread has no more than two vectors of each.
constexpr int kRowsOfTurn = 2;
// Rows on their way and in work. More of them is slower: measured 83.4 % at 3, 80.9 % at 4.
constexpr int kMaxStages = 3;

// kPlain: weight and grad_x are aligned like x; else the same sums, and stores of any kind.
template <typename T, int kVectors, bool kPlain>
__global__ void __launch_bounds__(kMaxThreads, 1)
    GradientsInRegisters(const __grid_constant__ Gradients<T> p, int stages) {
  constexpr int kPer = kPerVector<T>;
  using W = Wide<T>;
  __shared__ __align__(8) uint64_t barriers[RowRing<2>::kMaxStages];
  // Rows of one turn: two chains of latencies side by side, where there are registers for them.
  constexpr int kTurn = kVectors <= 2 ? kRowsOfTurn : 1;
  // There the elements also stay unpacked from the first use to the second.
  const auto again = [](const uint4& bits) {
    return kVectors <= 2 ? Unpack<T>(bits) : UnpackAgain<T>(bits);
  };
  __shared__ W partial[2][2 * kTurn][kMaxWarps];
  const int threads = blockDim.x, vectors = static_cast<int>(p.D / kPer);
  const int64_t step = gridDim.x;
  const auto row_of = [&](int input, int64_t row) {
    return input == 0 ? p.grad_out.At(row) : p.x.At(row);
  };
  RowRing<2> ring(DynamicShared(), barriers, stages, vectors);
  ring.Start(blockIdx.x, step, p.rows, row_of);

  uint4 weight[kVectors] = {};
  W sums[kVectors][kPer] = {};
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int at = threadIdx.x + i * threads;
    if (at < vectors) weight[i] = LoadAt(p.weight + at * kPer, kPlain || p.weight_aligned);
  }
  int turn = 0;
  for (int64_t first = blockIdx.x; first < p.rows; first += kTurn * step, turn ^= 1) {
    uint4 grad[kTurn][kVectors] = {}, x[kTurn][kVectors] = {};
    W totals[2 * kTurn] = {};  // squares, products of each row
#pragma unroll
    for (int r = 0; r < kTurn; ++r) {
      if (first + r * step >= p.rows) continue;
      const uint4* held = ring.Wait(r);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const int at = threadIdx.x + i * threads;
        if (at < vectors) {
          grad[r][i] = held[at];
          x[r][i] = held[vectors + at];
        }
        const Unpacked<T> g = Unpack<T>(grad[r][i]), v = Unpack<T>(x[r][i]),
                          w = Unpack<T>(weight[i]);
#pragma unroll
        for (int k = 0; k < kPer; ++k) {
          totals[2 * r] = MulAdd(v.at[k], v.at[k], totals[2 * r]);
          totals[2 * r + 1] = MulAdd(g.at[k] * w.at[k], v.at[k], totals[2 * r + 1]);
        }
      }
    }
    SumAll(totals, partial[turn]);
#pragma unroll
    for (int r = 0; r < kTurn; ++r) ring.Refill(first + (stages + r) * step, p.rows, row_of);
#pragma unroll
    for (int r = 0; r < kTurn; ++r) {
      const int64_t row = first + r * step;
      if (row >= p.rows) continue;
      const W scale = ReciprocalRoot(totals[2 * r] * p.inverse_D + p.eps);
      const W slope = totals[2 * r + 1] * p.inverse_D * scale;
      T* to = !p.grad_x.data ? nullptr : kPlain ? p.grad_x.At(row) : p.grad_x[row];
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const Unpacked<T> g = again(grad[r][i]), v = again(x[r][i]), w = again(weight[i]);
        Unpacked<T> result;
#pragma unroll
        for (int k = 0; k < kPer; ++k) {
          const W normal = v.at[k] * scale;
          sums[i][k] = MulAdd(g.at[k], normal, sums[i][k]);
          result.at[k] = GradientOfX(g.at[k] * w.at[k], normal, scale, slope);
        }
        const int at = threadIdx.x + i * threads;
        if (to && at < vectors)
          StoreAt(to + at * kPer, kPlain || p.grad_x_aligned, Pack<T>(result));
      }
    }
  }
  LetNextStart();
  if (!p.parts) return;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int at = threadIdx.x + i * threads;
    if (at >= vectors) continue;
    // A part begins at a multiple of D elements, and so of 16 bytes.
    constexpr int kStore = 16 / int{sizeof(W)};
    auto* part =
        reinterpret_cast<Vector<W, kStore>*>(p.parts + blockIdx.x * p.D + int64_t{at} * kPer);
#pragma unroll
    for (int k = 0; k < kPer; k += kStore) {
      Vector<W, kStore> piece;
#pragma unroll
      for (int j = 0; j < kStore; ++j) piece.at[j] = sums[i][k + j];
      part[k / kStore] = piece;
    }
  }
}

// Blocks, threads and the ring of GradientsInRegisters.
struct Plan {
  int vectors_of_thread, threads, stages, blocks;
  size_t ring_bytes;
};

// False when the rows do not fit.
template <typename T>
bool MakePlan(const Gradients<T>& p, const Limits& limits, Plan* plan) {
  const int64_t vectors = p.D / kPerVector<T>;
  if (vectors > 2048) return false;
  plan->vectors_of_thread = vectors > 1024 ? 4 : 2;
  const int64_t needed = CeilDiv(vectors, plan->vectors_of_thread);
  plan->threads = static_cast<int>(CeilDiv(needed, 32) * 32);
  const int fit = kMaxThreads / plan->threads;
  const int per_multiprocessor = fit > 16 ? 16 : fit;
  const int64_t stage_bytes = 2 * 16 * vectors;
  const int64_t kept = 2048;  // of each block, for its own variables and the system
  const int64_t room = limits.shared_bytes / per_multiprocessor - kept;
  const int64_t most = limits.shared_bytes_of_block - kept;
  const int64_t stages = (room < most ? room : most) / stage_bytes;
  if (stages < 2) return false;
  plan->stages = static_cast<int>(stages < kMaxStages ? stages : kMaxStages);
  plan->ring_bytes = static_cast<size_t>(plan->stages * stage_bytes);
  // Turns of two rows, equally many for every block: no turn that only a few of them take.
  const int64_t most_blocks = int64_t{limits.multiprocessors} * per_multiprocessor;
  const int64_t turns = CeilDiv(p.rows, kRowsOfTurn * most_blocks);
  plan->blocks =
      static_cast<int>(p.rows <= most_blocks ? p.rows : CeilDiv(p.rows, kRowsOfTurn * turns));
  return true;
}

template <typename T, int kVectors, bool kPlain>
int32_t RunPlan(AnyopCall* call, const Gradients<T>& p, const Plan& plan) {
  const auto kernel = GradientsInRegisters<T, kVectors, kPlain>;
  const auto bytes = static_cast<int>(plan.ring_bytes);
  if (int32_t status = Check(
          call, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
          "asking for shared memory"))
    return status;
  return Launch{dim3(plan.blocks), dim3(plan.threads), plan.ring_bytes}.Run(call, kernel, p,
                                                                            plan.stages);
}

template <typename T>
int32_t RunInRegisters(AnyopCall* call, Gradients<T> p, const Plan& plan, const Limits& limits) {
  if (p.grad_weight) {
    p.parts = static_cast<Wide<T>*>(
        call->workspace(call, int64_t{plan.blocks} * p.D * int64_t{sizeof(Wide<T>)}));
    if (!p.parts) return kAnyopOutOfMemory;
  }
  const bool plain = p.weight_aligned && p.grad_x_aligned && p.grad_x.HasOneStride();
  int32_t status;
  if (plan.vectors_of_thread == 2) {
    status = plain ? RunPlan<T, 2, true>(call, p, plan) : RunPlan<T, 2, false>(call, p, plan);
  } else {
    status = plain ? RunPlan<T, 4, true>(call, p, plan) : RunPlan<T, 4, false>(call, p, plan);
  }
  if (status) return status;
  return p.grad_weight ? AddParts(call, p, plan.blocks, limits.major >= 9) : kAnyopOk;
}

template <typename T>
int32_t Run(const RmsNormBackwardArgs* args, AnyopCall* call) {
  Gradients<T> p = {};
  p.grad_out = RowsOf<const T>(args->grad_out);
  p.x = RowsOf<const T>(args->x);
  p.weight = static_cast<const T*>(args->weight->data);
  if (args->grad_x) p.grad_x = RowsOf<T>(args->grad_x);
  if (args->grad_weight) p.grad_weight = static_cast<T*>(args->grad_weight->data);
  p.rows = args->rows;
  p.D = args->D;
  p.inverse_D = 1 / static_cast<Wide<T>>(args->D);
  p.eps = EpsilonOf<T>(args->eps);
  if (p.D == 0 || (!p.grad_x.data && !p.grad_weight)) return kAnyopOk;
  if (p.rows == 0) return p.grad_weight ? AddParts(call, p, 0, false) : kAnyopOk;
  Limits limits;
  if (int32_t status = ReadLimits(call, &limits)) return status;
  p.grad_x_aligned = InVectors(p.grad_x, p.D);
  p.weight_aligned = IsAligned(p.weight, 16);
  // What is read in rows alone decides how sums are made: the bits do not depend on where the
  // results go, nor on which of them are wanted.
  const bool in_vectors = InVectors(p.grad_out, p.D) && InVectors(p.x, p.D);
  Plan plan;
  if (in_vectors && p.grad_out.HasOneStride() && p.x.HasOneStride() && MakePlan(p, limits, &plan))
    return RunInRegisters(call, p, plan, limits);
  return RunAny(call, p, in_vectors, limits);
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_rms_norm_backward_cuda(const RmsNormBackwardArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  return WithFloating(AnyopDtypeOf(args->x),
                      [&](auto zero) { return Run<decltype(zero)>(args, call); });
}
