// SPDX-License-Identifier: Apache-2.0
// Gradients of qk_norm_rope on CUDA: heads are read once, turned back in registers and led through
// the norm; sums are float32 (float64). See rotary_rows.h.
#include "anyop/cuda_parts.h"
#include "anyop/ops/qk_norm_rope_backward.h"
#include "rotary_rows.h"

// Blocks stay on the device: some walk over the heads of the queries, the others over those of the
// keys, in teams of lanes as in qk_norm_rope.cu. A thread keeps the sums of its columns for the
// weight's gradient; a block adds those of its teams and writes a part, and a second kernel adds
// the parts, all in order.
namespace anyop::cuda {
namespace {

struct WalkOverHeads {
  int64_t heads[2];  // of all tokens
  int64_t blocks[2];
  Quotient by_heads[2];
  bool writes[2];  // the gradient of x
  int lanes;
};

// Block number `block` of the queries' (side 0) or the keys' has summed: part (block, side, D).
template <typename In>
__device__ void WritePart(const WalkOverHeads& walk, int64_t D, const UnitOf<In>& sums,
                          const Unit& unit, bool holds, int64_t block, int side,
                          typename In::W* parts) {
  using W = typename In::W;
  constexpr int kPer = In::kPer;
  __shared__ W of_block[2 * kPer][In::kMaxThreads];
  ForEach<In>([&](int s, int k) { of_block[s * kPer + k][threadIdx.x] = sums.of[s].at[k]; });
  __syncthreads();
  W* part = parts + (2 * block + side) * D;
  if (holds && static_cast<int>(threadIdx.x) < walk.lanes) {
    ForEach<In>([&](int s, int k) {
      double sum = 0;
      for (unsigned t = threadIdx.x; t < blockDim.x; t += walk.lanes)
        sum += of_block[s * kPer + k][t];
      if (s == 0 || unit.b >= 0) part[(s ? unit.b : unit.a) + k] = static_cast<W>(sum);
    });
  }
  if (block < walk.blocks[1 - side]) return;
  part = parts + (2 * block + 1 - side) * D;  // which no block of the other side has
  for (int64_t d = threadIdx.x; d < D; d += blockDim.x) part[d] = 0;
}

template <typename In>
__global__ void __launch_bounds__(In::kMaxThreads, 512 / In::kMaxThreads)
    TurnBackThroughNorm(const __grid_constant__ RotaryOperands<3> p,
                        const __grid_constant__ WalkOverHeads walk,
                        const HeadNorm<typename In::W> norm, typename In::W* parts) {
  using W = typename In::W;
  __shared__ Partials<W> partials;
  RowTeam<W> team(walk.lanes, partials);
  const int side = blockIdx.x >= walk.blocks[0];
  const int64_t block = blockIdx.x - (side ? walk.blocks[0] : 0),
                blocks = side ? walk.blocks[1] : walk.blocks[0],
                heads = side ? walk.heads[1] : walk.heads[0],
                heads_of_token = side ? p.heads[1] : p.heads[0];
  const Quotient by_heads = side ? walk.by_heads[1] : walk.by_heads[0];
  const bool writes = side ? walk.writes[1] : walk.writes[0];
  const int lane = static_cast<int>(threadIdx.x) % walk.lanes, of_block = blockDim.x / walk.lanes;
  const bool holds = lane < p.units;
  const Unit unit = p.UnitAt<In::kPer>(holds ? lane : 0);
  UnitOf<In> sums = {};
  for (int64_t first = block * of_block; first < heads; first += blocks * of_block) {
    const int64_t head = first + threadIdx.x / walk.lanes;
    const bool inside = holds && head < heads;
    const int64_t number = by_heads.Divide(inside ? head : 0),
                  index = (inside ? head : 0) - number * heads_of_token;
    const Places<7> token = PlacesOf(p.tokens, number);
    HeldUnit<In> grad, x;
    UnitOf<In> back, w = {};
    if (inside) {
      grad.Read(p.HeadAt(token, 0, side, index), unit);
      x.Read(p.HeadAt(token, 1, side, index), unit);
    }
    back = UnitOf<In>(grad);
    if (inside) {
      w = norm.template WeightsOf<In>(side, unit);
      if (unit.turns) {
        Angles<In> angles;
        angles.Read(p.table, p.rows.Find(token.at[6]), unit);
        back = angles.Turn(back);
      }
    }
    const UnitOf<In> v(x);
    W squares = 0, products = 0;
    ForEach<In>([&](int s, int k) {
      squares = MulAdd(v.of[s].at[k], v.of[s].at[k], squares);
      products = MulAdd(back.of[s].at[k] * w.of[s].at[k], v.of[s].at[k], products);
    });
    team.Totals(squares, products);
    if (!inside) continue;
    const W scale = norm.Scale(squares), slope = products * norm.inverse_D * scale;
    UnitOf<In> result;
    ForEach<In>([&](int s, int k) {
      const W normal = v.of[s].at[k] * scale;
      sums.of[s].at[k] = MulAdd(back.of[s].at[k], normal, sums.of[s].at[k]);
      result.of[s].at[k] = scale * MulAdd(-normal, slope, back.of[s].at[k] * w.of[s].at[k]);
    });
    if (writes) result.Write(p.HeadAt(token, 2, side, index), unit, p.aligned);
  }
  LetNextStart();
  if (parts) WritePart(walk, p.D, sums, unit, holds, block, side, parts);
}

template <typename In>
int32_t RunGradients(AnyopCall* call, const QkNormRopeBackwardArgs* args, RotaryOperands<3> p,
                     const SumsTo<2>& to, bool sums) {
  using W = typename In::W;
  p.CutHeads(In::kPer, true);
  const RowThreads threads(p.units, 1, In::kMaxThreads);
  Limits limits;
  if (int32_t status = ReadLimits(call, &limits)) return status;
  WalkOverHeads walk = {
      {}, {}, {}, {args->grad_q != nullptr, args->grad_k != nullptr}, threads.lanes};
  int64_t of_block = threads.threads / threads.lanes, all = 0;
  for (int side = 0; side < 2; ++side) {
    walk.heads[side] = p.tokens.items * p.heads[side];
    if (walk.heads[side]) walk.by_heads[side] = Quotient(p.heads[side], walk.heads[side]);
    all += walk.heads[side];
  }
  // Equally many turns for every block; more blocks than fit, rather than long sums in float32.
  constexpr int64_t kMaxTurns = 64;
  const int64_t resident = int64_t{limits.multiprocessors} * (512 / threads.threads);
  const int64_t turns = CeilDiv(all, resident * of_block);
  const int64_t heads_of_block = (turns < kMaxTurns ? turns : kMaxTurns) * of_block;
  for (int side = 0; side < 2; ++side)
    walk.blocks[side] = heads_of_block ? CeilDiv(walk.heads[side], heads_of_block) : 0;
  const int64_t count = walk.blocks[0] > walk.blocks[1] ? walk.blocks[0] : walk.blocks[1];
  W* parts = nullptr;
  if (sums && all) {
    parts = static_cast<W*>(call->workspace(call, count * 2 * p.D * int64_t{sizeof(W)}));
    if (!parts) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  }
  if (all) {
    const Launch launch{dim3(static_cast<unsigned>(walk.blocks[0] + walk.blocks[1])),
                        dim3(threads.threads)};
    if (int32_t status =
            launch.Run(call, TurnBackThroughNorm<In>, p, walk, HeadNorm<W>(args), parts))
      return status;
  }
  const W* summed = parts;
  return sums ? RunAddParts(call, summed, to, count, p.D, all && limits.major >= 9) : kAnyopOk;
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_qk_norm_rope_backward_cuda(const QkNormRopeBackwardArgs* args,
                                                    AnyopCall* call) {
  using namespace anyop::cuda;
  const bool of_q = args->grad_q || args->grad_q_weight, of_k = args->grad_k || args->grad_k_weight;
  if (args->D == 0 || (!of_q && !of_k)) return kAnyopOk;
  if (args->numel_X * args->S > 0 && !args->positions) {
    if (int32_t status = anyop::CheckLength(call, args->S, args->P)) return status;
  }
  const AnyopTensor* const tensors[] = {
      of_q ? args->grad_q_out : nullptr, of_q ? args->q : nullptr, args->grad_q,
      of_k ? args->grad_k_out : nullptr, of_k ? args->k : nullptr, args->grad_k};
  const RotaryOperands<3> p(args, nullptr, true, tensors);
  const auto data = [](const AnyopTensor* t) { return t ? static_cast<char*>(t->data) : nullptr; };
  const auto dtype = [](const AnyopTensor* t) { return t ? AnyopDtypeOf(t) : kAnyopNoDtype; };
  const SumsTo<2> to = {{data(args->grad_q_weight), data(args->grad_k_weight)},
                        {dtype(args->grad_q_weight), dtype(args->grad_k_weight)}};
  return WithPieces(p, [&](auto in) {
    return RunGradients<decltype(in)>(call, args, p, to,
                                      args->grad_q_weight || args->grad_k_weight);
  });
}
