// SPDX-License-Identifier: Apache-2.0
// RMS norm of each head of queries and keys, then rope, on CUDA: a head is read once and lies in
// the registers of a warp's lanes, or of a block; sums are float32 (float64). See rotary_rows.h.
#include "anyop/ops/qk_norm_rope.h"
#include "rotary_rows.h"

namespace anyop::cuda {
namespace {

// A team of lanes has up to kHeads heads of a token, a lane one unit of each.
template <typename In>
__global__ void __launch_bounds__(In::kMaxThreads)
    NormAndTurn(const __grid_constant__ RotaryOperands<2> p,
                const __grid_constant__ RotaryTeams teams, const HeadNorm<typename In::W> norm) {
  using W = typename In::W;
  __shared__ Partials<W> partials;
  RowTeam<W> team(static_cast<int>(teams.lanes), partials);
  for (int64_t first = int64_t{blockIdx.x} * blockDim.x; first < teams.items;
       first += int64_t{gridDim.x} * blockDim.x) {
    const bool inside = first + threadIdx.x < teams.items;
    const int64_t item = inside ? first + threadIdx.x : 0, number = teams.by_lanes.Divide(item),
                  lane = item - number * teams.lanes;
    const bool holds = inside && lane < p.units;
    const Unit unit = p.UnitAt<In::kPer>(holds ? lane : 0);
    const HeadsOfThread<In> mine(p, teams, number, unit, holds);
    Angles<In> angles;
    if (holds && unit.turns) angles.Read(p.table, p.rows.Find(mine.token.at[4]), unit);
    W squares[kHeads] = {};
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const UnitOf<In> v(mine.held[h]);
      ForEach<In>(
          [&](int s, int k) { squares[h] = MulAdd(v.of[s].at[k], v.of[s].at[k], squares[h]); });
    }
    team.Totals(squares[0], squares[1]);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (!mine.out[h]) continue;
      const UnitOf<In> w = norm.template WeightsOf<In>(mine.of_keys[h], unit);
      const W scale = norm.Scale(squares[h]);
      UnitOf<In> v(mine.held[h]);
      ForEach<In>([&](int s, int k) { v.of[s].at[k] = v.of[s].at[k] * scale * w.of[s].at[k]; });
      (unit.turns ? angles.Turn(v) : v).Write(mine.out[h], unit, p.aligned);
    }
  }
}

int32_t RunNormAndTurn(AnyopCall* call, const QkNormRopeArgs* args,
                       const AnyopTensor* const (&tensors)[4]) {
  RotaryOperands<2> p(args, nullptr, false, tensors);
  const int64_t heads = p.heads[0] + p.heads[1];
  if (p.tokens.items * heads * p.D == 0) return kAnyopOk;
  int64_t wanted = 0;
  if (int32_t status = ThreadsWanted(call, &wanted)) return status;
  return WithPieces(p, [&](auto in) {
    using In = decltype(in);
    p.CutHeads(In::kPer, true);
    const RowThreads threads(p.units, 1, In::kMaxThreads);
    const RotaryTeams teams(threads.lanes, heads, p.tokens.items, wanted);
    return threads.LaunchFor(p.tokens.items * teams.slots)
        .Run(call, NormAndTurn<In>, p, teams, HeadNorm<typename In::W>(args));
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
