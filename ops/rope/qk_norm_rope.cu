// SPDX-License-Identifier: Apache-2.0
// RMS norm of each head of queries and keys, then rope, on CUDA: a head is read once and lies in
// the registers of a warp's lanes, or of a block; sums are float32 (float64). See rotary_rows.h.
#include "anyop/ops/qk_norm_rope.h"
#include "rotary_norms.h"

namespace anyop::cuda {
namespace {

// A team of lanes has some heads of a token, a lane one unit of each.
template <typename In, int kHeads>
__global__ void __launch_bounds__(In::kMaxThreads, In::kPer == 1 ? 1
                                                   : kHeads == 2 ? 6
                                                                 : 5)
    NormAndTurn(const __grid_constant__ RotaryOperands<2> p,
                const __grid_constant__ RotaryTeams teams, const HeadNorm<typename In::W> norm) {
  using W = typename In::W;
  using Two = Couple<W>;
  __shared__ Partials<W> partials;
  WaitForWork();
  LetNextStart();
  RowTeam<W> join(static_cast<int>(teams.lanes.value), partials);
  const uint32_t item = blockIdx.x * blockDim.x + threadIdx.x;
  const bool inside = item < teams.items;
  const uint32_t team = teams.lanes.Divide(inside ? item : 0);
  const int lane = static_cast<int>((inside ? item : 0) - team * teams.lanes.value);
  const bool holds = inside && lane < p.units;
  const Unit unit = p.UnitAt<In::kPer>(holds ? lane : 0);
  HeadsOfThread<In, kHeads> mine(p, teams, team, unit);
  Angles<In, false> angles;
  if (unit.turns) angles.Read(p.table, mine.row, unit);
  W squares[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    W of[2] = {};
#pragma unroll
    for (int s = 0; s < 2; ++s) {
#pragma unroll
      for (int i = 0; i < In::kCouples; ++i) {
        const Two v = mine.held[h].of[s][i];
        of[s] = MulAdd(v.first, v.first, of[s]);
        if (In::kPer > 1) of[s] = MulAdd(v.second, v.second, of[s]);
      }
    }
    squares[h] = holds ? unit.b == unit.a ? of[0] : of[0] + of[1] : W(0);
  }
  SumOverTeam(join, static_cast<int>(teams.lanes.value), squares);
  if (!holds) return;
  const WeightsOf<In> weights(norm, mine.of_keys, unit);
  const auto finish = [&](const auto& turn) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) squares[h] = norm.Scale(squares[h]);
#pragma unroll
    for (int i = 0; i < In::kCouples; ++i) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        auto& of = mine.held[h].of;
        Two v[2];
#pragma unroll
        for (int s = 0; s < 2; ++s) {
          const Two w = weights.of[s][i];
          v[s] = of[s][i];
          v[s] = {v[s].first * squares[h] * w.first, v[s].second * squares[h] * w.second};
        }
        turn(i, v[0], v[1]);
        of[0].Set(i, v[0]);
        of[1].Set(i, v[1]);
      }
    }
  };
  if (unit.turns) {
    WithTurn(angles, p.table.interleaved, finish);
  } else {
    finish([](int, Two&, Two&) {});
  }
  mine.Write(unit, p.aligned);
}

int32_t RunNormAndTurn(AnyopCall* call, const QkNormRopeArgs* args,
                       const AnyopTensor* const (&tensors)[4]) {
  const int64_t heads = HeadsOf(tensors[0]) + HeadsOf(tensors[2]);
  if (args->numel_X * args->S * heads * args->D == 0) return kAnyopOk;
  if (int32_t status = CheckHeads(call, args, heads)) return status;
  RotaryOperands<2> all(args, nullptr, tensors);
  const RotaryTokens<2> tokens(args->positions, tensors);
  const bool vectors =
      all.FitVectors(16 / tokens.item_bytes) && HeadNorm<float>(args).FitsVectors();
  Limits limits;
  if (int32_t status = ReadLimits(call, &limits)) return status;
  return WithPieces(tokens.dtype, all.table.dtype, vectors, [&](auto in) {
    using In = decltype(in);
    all.CutHeads(In::kPer, true);
    const RowThreads threads(all.units, 1, In::kMaxThreads);
    return tokens.EachPart(
        all, RotaryTeams::MaxTokens(threads.lanes, heads),
        [&](const RotaryOperands<2>& p, int64_t count) {
          // More heads a thread: fewer instructions, but less to do at once for few tokens.
          const HeadNorm<typename In::W> norm(args);
          const auto start = [&](int64_t teams) {
            Launch launch = threads.LaunchFor(count * teams);
            launch.overlaps = true;
            return launch;
          };
          const RotaryTeams fours(threads.lanes, p.heads, 4, count);
          if constexpr (std::is_same<typename In::Table, Packed<typename In::Type, 8>>::value) {
            if (fours.items >= int64_t{limits.multiprocessors} * 512)
              return start(fours.slots.value).Run(call, NormAndTurn<In, 4>, p, fours, norm);
          }
          const RotaryTeams twos(threads.lanes, p.heads, 2, count);
          return start(twos.slots.value).Run(call, NormAndTurn<In, 2>, p, twos, norm);
        });
  });
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_qk_norm_rope_cuda(const QkNormRopeArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  return RunQueryKey(call, args, [&](const AnyopTensor* const(&tensors)[4]) {
    if (args->numel_X * args->S > 0 && !args->positions) {
      if (int32_t status = anyop::CheckLength(call, args->S, args->P)) return status;
    }
    return RunNormAndTurn(call, args, tensors);
  });
}
