// SPDX-License-Identifier: Apache-2.0
// linear_w8a8 of one row on Hopper: see weight_ring.h. 8-bit floats are multiplied as float16,
// which holds them exactly, and added in float32. More rows or results are faster by
// linear_w8a8_few_sm90.cu, whose sums have the same digits.
#include "scaled_problem.h"
#include "weight_ring.h"

namespace anyop::cuda {
namespace {

template <Operand kType>
struct ByteWeight {
  using Sum = typename SumOf<kType>::Type;
  using Ends = NoEnds;
  static constexpr bool kHasOneRow = true, kIsGated = false;
  static constexpr int kWarps = 8, kPieces = 4, kStages = 2, kXVectors = 1, kEndBytes = 0;

  __device__ static int Bytes(int factors) { return factors; }
  __device__ static const uint8_t* WeightOf(const TileProblem& p) {
    return static_cast<const uint8_t*>(p.weight);
  }
  __device__ static uint32_t Wide(uint32_t four, int half) {
    return WidenTwo<kType>(half ? four >> 16 : four & 0xffff);
  }
  // Which factors stand in which place of mma.sync is free, as long as those of x stand in the
  // same.
  __device__ static void Add(const TileProblem&, const uint32_t (&low)[4],
                             const uint32_t (&high)[4], const uint32_t (&x)[1][4], uint32_t,
                             Sum (&sums)[4]) {
    if constexpr (kType == Operand::kInt8) {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const uint32_t of_weight[4] = {low[i], high[i], low[i + 1], high[i + 1]};
        MultiplyAdd<kType>(sums, of_weight, x[0][i], x[0][i + 1]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t of_weight[4] = {Wide(low[i], 0), Wide(high[i], 0), Wide(low[i], 1),
                                       Wide(high[i], 1)};
        MultiplyAdd<Operand::kFloat16>(sums, of_weight, Wide(x[0][i], 0), Wide(x[0][i], 1));
      }
    }
  }
};

template <Operand kType>
int32_t RunRingW8(AnyopCall* call, const TileProblem& p) {
  Limits limits;
  if (int32_t status = ReadLimits(call, &limits)) return status;
  return StartRing<ByteWeight<kType>>(call, p, limits.multiprocessors);
}

}  // namespace
}  // namespace anyop::cuda

// Its conditions say: one row, K a multiple of 256, N of 16, aligned to 16 bytes.
extern "C" int32_t anyop_linear_w8a8_cuda_ring_sm90(const LinearW8a8Args* args, AnyopCall* call) {
  using namespace anyop::cuda;
  TileProblem p;
  if (int32_t status = ScaledProblem(call, args, &p)) return status;
  if (p.rows == 0) return kAnyopOk;
  switch (AnyopDtypeOf(args->x)) {
    case kAnyopInt8:
      return RunRingW8<Operand::kInt8>(call, p);
    case kAnyopFloat8E4M3FN:
      return RunRingW8<Operand::kE4M3>(call, p);
    default:
      return RunRingW8<Operand::kE5M2>(call, p);
  }
}
