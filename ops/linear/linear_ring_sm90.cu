// SPDX-License-Identifier: Apache-2.0
// linear and linear_gated of at most eight rows in 16 bits on Hopper: see weight_ring.h.
#include "anyop/ops/linear.h"
#include "gated_problem.h"
#include "weight_ring.h"

namespace anyop::cuda {
namespace {

template <Operand kType, bool kGated, bool kOneRow, int kWarps_>
struct HalfWeight {
  using Sum = float;
  using Ends = NoEnds;
  static constexpr bool kHasOneRow = kOneRow, kIsGated = kGated;
  static constexpr int kWarps = kWarps_, kPieces = kWarps / 4, kStages = kWarps == 16 ? 2 : 5;
  static constexpr int kXVectors = 1, kEndBytes = 0;

  __host__ __device__ static int Bytes(int factors) { return 2 * factors; }
  __device__ static const uint8_t* WeightOf(const TileProblem& p) {
    return static_cast<const uint8_t*>(p.weight);
  }
  // Which factors stand in which place of mma.sync is free, as long as those of x stand in the
  // same.
  __device__ static void Add(const TileProblem&, const uint32_t (&low)[4],
                             const uint32_t (&high)[4], const uint32_t (&x)[1][4], uint32_t,
                             float (&sums)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const uint32_t of_weight[4] = {low[i], high[i], low[i + 1], high[i + 1]};
      MultiplyAdd<kType>(sums, of_weight, x[0][i], x[0][i + 1]);
    }
  }
};
template <Operand kType, bool kGated>
struct HalfWeights {
  template <bool kOneRow, int kWarps>
  using Of = HalfWeight<kType, kGated, kOneRow, kWarps>;
  static int LongRow(int rows) { return rows == 1 ? 8192 : 4096; }
};

template <bool kGated>
int32_t RunHalves(AnyopCall* call, const TileProblem& p) {
  if (p.rows == 0) return kAnyopOk;
  return p.result == kAnyopFloat16 ? RunByRing<HalfWeights<Operand::kFloat16, kGated>>(call, p)
                                   : RunByRing<HalfWeights<Operand::kBFloat16, kGated>>(call, p);
}

}  // namespace
}  // namespace anyop::cuda

// Its conditions say: at most eight rows, K a multiple of 64, N of 16, aligned to 16 bytes.
extern "C" int32_t anyop_linear_cuda_ring_sm90(const LinearArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  TileProblem p;
  if (int32_t status = PlainProblem(call, args->x, args->weight, args->bias, args->out, args->rows,
                                    args->N, args->K, &p))
    return status;
  return RunHalves<false>(call, p);
}
// Its: the same, D a multiple of 8.
extern "C" int32_t anyop_linear_gated_cuda_ring_sm90(const LinearGatedArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  TileProblem p;
  if (int32_t status = GatedProblem(call, args, nullptr, &p)) return status;
  return RunHalves<true>(call, p);
}
