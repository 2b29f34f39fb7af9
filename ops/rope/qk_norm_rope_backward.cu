// SPDX-License-Identifier: Apache-2.0
// Gradients of qk_norm_rope on CUDA: heads are read once, turned back in registers and led through
// the norm; sums are float32 (float64). See rotary_rows.h.
#include "anyop/cuda/parts.h"
#include "anyop/ops/qk_norm_rope_backward.h"
#include "rotary_norms.h"

// Blocks stay on the device: some walk over the heads of the queries, the others over those of the
// keys, in teams of lanes as in qk_norm_rope.cu. A thread keeps the sums of its columns for the
// weight's gradient; a block adds those of its teams and writes a part, and a second kernel adds
// the parts, all in order.
namespace anyop::cuda {
namespace {

constexpr int kHeads =
    2;  // that a team takes at once, of one token: they lie `of_token` slots apart

struct WalkOverHeads {
  uint32_t slots[2];  // of all tokens
  uint32_t blocks[2];
  Divisor of_token[2];  // slots
  bool writes[2];       // the gradient of x
  int lanes;

  uint32_t parts() const { return blocks[0] > blocks[1] ? blocks[0] : blocks[1]; }
};

template <typename In>
using UnitSums = Couple<typename In::W>[2][In::kCouples];

// Calls f(s, i) for couple i of pieces s of a unit.
template <typename In, typename F>
__device__ void ForEach(const F& f) {
#pragma unroll
  for (int i = 0; i < In::kCouples; ++i) {
#pragma unroll
    for (int s = 0; s < 2; ++s) f(s, i);
  }
}

// Block number `block` of the queries' (side 0) or the keys' has summed: part (block, side, D).
template <typename In>
__device__ void WritePart(const WalkOverHeads& walk, int D, const UnitSums<In>& sums,
                          const Unit& unit, bool holds, uint32_t block, int side,
                          typename In::W* parts) {
  using W = typename In::W;
  constexpr int kPer = In::kPer;
  __shared__ W of_block[2 * kPer][In::kMaxThreads];
  ForEach<In>([&](int s, int i) {
    of_block[s * kPer + 2 * i][threadIdx.x] = sums[s][i].first;
    if (kPer > 1) of_block[s * kPer + 2 * i + 1][threadIdx.x] = sums[s][i].second;
  });
  __syncthreads();
  W* part = parts + (2 * int64_t{block} + side) * D;
  if (holds && static_cast<int>(threadIdx.x) < walk.lanes) {
    for (int e = 0; e < 2 * kPer; ++e) {
      double sum = 0;
      for (unsigned t = threadIdx.x; t < blockDim.x; t += walk.lanes) sum += of_block[e][t];
      if (e < kPer || unit.b != unit.a)
        part[e < kPer ? unit.a + e : unit.b + e - kPer] = static_cast<W>(sum);
    }
  }
  if (block < walk.blocks[1 - side]) return;
  part = parts + (2 * int64_t{block} + 1 - side) * D;  // which no block of the other side has
  for (int d = threadIdx.x; d < D; d += blockDim.x) part[d] = 0;
}

template <typename In>
__global__ void __launch_bounds__(In::kMaxThreads, 512 / In::kMaxThreads)
    TurnBackThroughNorm(const __grid_constant__ RotaryOperands<3> p,
                        const __grid_constant__ WalkOverHeads walk,
                        const HeadNorm<typename In::W> norm, typename In::W* parts) {
  using W = typename In::W;
  using Two = Couple<W>;
  __shared__ Partials<W> partials;
  RowTeam<W> team(walk.lanes, partials);
  const int side = blockIdx.x >= walk.blocks[0];
  const uint32_t block = blockIdx.x - (side ? walk.blocks[0] : 0),
                 blocks = side ? walk.blocks[1] : walk.blocks[0],
                 slots = side ? walk.slots[1] : walk.slots[0],
                 heads = side ? p.heads[1] : p.heads[0];
  const Divisor of_token = side ? walk.of_token[1] : walk.of_token[0];
  const bool writes = side ? walk.writes[1] : walk.writes[0];
  const int lane = static_cast<int>(threadIdx.x) % walk.lanes;
  const uint32_t of_block = blockDim.x / walk.lanes;
  const bool holds = lane < p.units;
  const Unit unit = p.UnitAt<In::kPer>(holds ? lane : 0);
  const bool has_b = unit.b != unit.a;
  const WeightsOf<In> w(norm, side, unit);
  UnitSums<In> sums = {};
  for (uint32_t first = block * of_block; first < slots; first += blocks * of_block) {
    const bool inside = holds && first + threadIdx.x / walk.lanes < slots;
    const uint32_t slot = inside ? first + threadIdx.x / walk.lanes : 0,
                   number = of_token.Divide(slot), index = slot - number * of_token.value;
    const bool several = index + of_token.value < heads;
    const Places<7> token = p.tokens.Find(number);
    const int64_t row = p.rows.Read(p.PlaceOf(token));
    HeldUnit<In> grad[kHeads], x[kHeads];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const uint32_t head = h && several ? index + of_token.value : index;
      grad[h].Read(p.HeadAt(token, 0, side, head), unit);
      x[h].Read(p.HeadAt(token, 1, side, head), unit);
    }
    UnitSums<In> back[kHeads];
    const auto turn_back = [&](const auto& turn) {
#pragma unroll
      for (int i = 0; i < In::kCouples; ++i) {
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          back[h][0][i] = grad[h].of[0][i];
          back[h][1][i] = grad[h].of[1][i];
          turn(i, back[h][0][i], back[h][1][i]);
        }
      }
    };
    if (unit.turns) {
      Angles<In, true> angles;
      angles.Read(p.table, p.rows.Find(row), unit);
      WithTurn(angles, p.table.interleaved, turn_back);
    } else {
      turn_back([](int, Two&, Two&) {});
    }
    W found[2 * kHeads] = {};  // of each head the sum of squares, that of products
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      W square[2] = {}, product[2] = {};
      ForEach<In>([&](int s, int i) {
        const Two v = x[h].of[s][i], g = back[h][s][i];
        square[s] = MulAdd(v.second, v.second, MulAdd(v.first, v.first, square[s]));
        product[s] = MulAdd(g.first * w.of[s][i].first, v.first, product[s]);
        product[s] = MulAdd(g.second * w.of[s][i].second, v.second, product[s]);
      });
      if (!inside) continue;
      found[2 * h] = has_b ? square[0] + square[1] : square[0];
      found[2 * h + 1] = has_b ? product[0] + product[1] : product[0];
    }
    SumOverTeam(team, walk.lanes, found);
    if (!inside) continue;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (h && !several) break;
      const W scale = norm.Scale(found[2 * h]), slope = found[2 * h + 1] * norm.inverse_D * scale;
      ForEach<In>([&](int s, int i) {
        const Two v = x[h].of[s][i], g = back[h][s][i],
                  normal = {v.first * scale, v.second * scale};
        Two& sum = sums[s][i];
        sum = {MulAdd(g.first, normal.first, sum.first),
               MulAdd(g.second, normal.second, sum.second)};
        x[h].of[s].Set(i, {scale * MulAdd(-normal.first, slope, g.first * w.of[s][i].first),
                           scale * MulAdd(-normal.second, slope, g.second * w.of[s][i].second)});
      });
      if (writes) x[h].Write(p.HeadAt(token, 2, side, index + h * of_token.value), unit, p.aligned);
    }
  }
  LetNextStart();
  if (parts) WritePart<In>(walk, p.D, sums, unit, holds, block, side, parts);
}

// How the heads of so many tokens are walked; all: slots of all tokens.
template <typename In>
WalkOverHeads PlanWalk(const QkNormRopeBackwardArgs* args, const RotaryOperands<3>& p,
                       const Limits& limits, const RowThreads& threads, int64_t tokens,
                       int64_t all) {
  WalkOverHeads walk = {
      {}, {}, {}, {args->grad_q != nullptr, args->grad_k != nullptr}, threads.lanes};
  // Equally many turns for every block, and blocks for whole rounds of those that fit, rather than
  // long sums in float32.
  constexpr int64_t kMaxTurns = 32;
  const int64_t of_block = threads.threads / threads.lanes,
                resident = int64_t{limits.multiprocessors} * (512 / threads.threads),
                turns = CeilDiv(all, resident * of_block), rounds = CeilDiv(turns, kMaxTurns),
                slots_of_block = CeilDiv(turns, rounds) * of_block;
  for (int side = 0; side < 2; ++side) {
    const int64_t of_token = CeilDiv(p.heads[side], kHeads), slots = tokens * of_token;
    walk.slots[side] = static_cast<uint32_t>(slots);
    walk.blocks[side] = static_cast<uint32_t>(CeilDiv(slots, slots_of_block));
    if (slots) walk.of_token[side] = Divisor(of_token);
  }
  return walk;
}

template <typename In>
int32_t RunGradients(AnyopCall* call, const QkNormRopeBackwardArgs* args, RotaryOperands<3> p,
                     const RotaryTokens<3>& tokens, const SumsTo<2>& to, bool sums) {
  using W = typename In::W;
  p.CutHeads(In::kPer, true);
  const RowThreads threads(p.units, 1, In::kMaxThreads);
  Limits limits;
  if (int32_t status = ReadLimits(call, &limits)) return status;
  const int64_t heads = p.heads[0] + p.heads[1],
                all =
                    tokens.walk.items * (CeilDiv(p.heads[0], kHeads) + CeilDiv(p.heads[1], kHeads));
  if (all == 0) return sums ? RunAddParts<W>(call, nullptr, to, 0, p.D, false) : kAnyopOk;
  const int64_t most = (INT64_C(0x7fffffff) - (1 << 20)) / heads;
  const auto plan = [&](int64_t count) {
    return PlanWalk<In>(args, p, limits, threads, count, all);
  };
  int64_t count = 0;
  tokens.EachPart(p, most, [&](const RotaryOperands<3>&, int64_t n) {
    count += plan(n).parts();
    return int32_t{kAnyopOk};
  });
  W* parts = nullptr;
  if (sums) {
    parts = static_cast<W*>(call->workspace(call, count * 2 * p.D * int64_t{sizeof(W)}));
    if (!parts) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  }
  W* next = parts;
  const auto run = [&](const RotaryOperands<3>& part, int64_t n) {
    const WalkOverHeads walk = plan(n);
    const Launch launch{dim3(walk.blocks[0] + walk.blocks[1]), dim3(threads.threads)};
    W* to_parts = next;
    if (next) next += int64_t{walk.parts()} * 2 * p.D;
    return launch.Run(call, TurnBackThroughNorm<In>, part, walk, HeadNorm<W>(args), to_parts);
  };
  if (int32_t status = tokens.EachPart(p, most, run)) return status;
  const W* summed = parts;
  return sums ? RunAddParts(call, summed, to, count, p.D, limits.major >= 9) : kAnyopOk;
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
  const int64_t heads = HeadsOf(tensors[1]) + HeadsOf(tensors[4]);
  if (int32_t status = CheckHeads(call, args, heads)) return status;
  const RotaryOperands<3> p(args, nullptr, tensors);
  const RotaryTokens<3> tokens(args->positions, tensors);
  const auto data = [](const AnyopTensor* t) { return t ? static_cast<char*>(t->data) : nullptr; };
  const auto dtype = [](const AnyopTensor* t) { return t ? AnyopDtypeOf(t) : kAnyopNoDtype; };
  const SumsTo<2> to = {{data(args->grad_q_weight), data(args->grad_k_weight)},
                        {dtype(args->grad_q_weight), dtype(args->grad_k_weight)}};
  const bool vectors = p.FitVectors(16 / tokens.item_bytes) && HeadNorm<float>(args).FitsVectors();
  return WithPieces(tokens.dtype, p.table.dtype, vectors, [&](auto in) {
    return RunGradients<decltype(in)>(call, args, p, tokens, to,
                                      args->grad_q_weight || args->grad_k_weight);
  });
}
