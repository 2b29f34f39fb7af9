// SPDX-License-Identifier: Apache-2.0
// Gradients of attention on Hopper: which tiles, by dtype and features, and the three launches.
#include "anyop/ops/attention_backward.h"
#include "anyop/ops/attention_varlen_backward.h"
#include "attention_backward_sm90.h"

namespace anyop::cuda {
namespace {

inline int32_t DeclineGradients(AnyopCall* call) {
  return call->fail(
      call, kAnyopDeclined,
      "it takes neither mask nor slopes, a scale above 0, queries and keys, up to 192 "
      "features (128 of values and with a softcap), and rows that are multiples of "
      "16 bytes");
}

// The parts of one piece of memory; false where there is none.
template <typename Tile>
bool TakeMemory(const GradientView& p, const HopperGradientOrder& order, AnyopCall* call,
                HopperGradientMemory* m) {
  const int64_t numbers = p.a.items * Tile::kQueries, sums = p.grad_q ? numbers * Tile::kD : 0;
  const int64_t tile = Tile::kKeys * (Tile::kD + Tile::kE);
  const int64_t left = order.parts > 1 ? p.key_items * tile : 0;
  const int64_t count = 2 * numbers + sums + left + p.a.items + p.key_items + 1;
  auto* at = static_cast<float*>(call->workspace(call, 4 * count));
  m->bases = at, m->deltas = m->bases + numbers, m->sums = m->deltas + numbers;
  m->parts = m->sums + sums;
  m->turns = reinterpret_cast<int32_t*>(m->parts + left), m->done = m->turns + p.a.items;
  m->next = m->done + p.key_items;
  return at;
}

// Heads of a group are divided while their items stay long and a bound makes them differ, so that
// few heads are worked on at a time, whose queries and grad_q in float32 the second cache holds.
// Parts of a group follow each other far enough apart.
template <typename Tile>
HopperGradientOrder OrderOf(const GradientView& p, int multiprocessors) {
  constexpr int kFewest = 32, kAhead = 4;
  constexpr int64_t kCached = 68 << 20;
  HopperGradientOrder order = {};
  order.groups = p.B * p.G, order.tiles = p.key_tiles, order.parts = 1;
  const bool differ = p.a.cu_q || p.a.left < p.a.T || p.a.right < p.a.T;
  const int tiles = p.a.cu_q ? p.a.S / 64 / std::max(p.a.sequences, 1) : p.a.tiles;
  for (int parts = 2; parts <= p.a.group && order.groups >= 4 && differ; ++parts)
    if (p.a.group % parts == 0 && p.a.group / parts * tiles >= kFewest) order.parts = parts;
  order.heads = p.a.group / order.parts;
  const int groups = order.groups * order.parts;
  const int at_once = (multiprocessors + order.tiles / 2) / order.tiles;
  order.section = std::max(1, std::min(at_once, order.groups));
  const int64_t bytes =
      int64_t{p.a.S} * (differ ? order.heads : 1) * (2 * (Tile::kD + Tile::kE) + 4 * Tile::kD);
  const int64_t rest = std::min<int64_t>(kCached / bytes, std::min(order.groups, 16));
  const int sections = groups / order.section;  // whole ones
  const int early = groups - (p.a.cu_q ? 0 : static_cast<int>(rest));
  order.early = std::min((early + order.section - 1) / order.section, sections) * order.section;
  order.rest = groups - order.early;
  order.ahead = p.a.cu_q ? p.key_tiles : kAhead;
  order.items = groups * order.tiles;
  return order;
}

// rows: (B, H, S, D) of q, k, v and grad_out.
template <typename T, int kD, int kE, bool kCapped>
int32_t RunGradients(GradientView* p, const AnyopTensor* const (&rows)[4], AnyopCall* call) {
  using Tile = HopperGradientTile<kD, kE, kCapped>;
  constexpr auto kernel = GradeOnHopper<T, kD, kE, kCapped>;
  HopperGradientMaps maps;
  if (p->a.items > INT32_MAX / 2 || p->key_items * p->a.group > INT32_MAX / 2 ||
      !EncodeHeads(&maps.q, *rows[0], Tile::kQueries) ||
      !EncodeHeads(&maps.k, *rows[1], Tile::kKeys) ||
      !EncodeHeads(&maps.v, *rows[2], Tile::kKeys) ||
      !EncodeHeads(&maps.grad, *rows[3], Tile::kQueries))
    return DeclineGradients(call);
  if (const int32_t status = AllowShared<kernel>(call, Tile::kSharedBytes)) return status;
  Limits limits;
  if (const int32_t status = ReadLimits(call, &limits)) return status;
  const HopperGradientOrder order = OrderOf<Tile>(*p, limits.multiprocessors);
  HopperGradientMemory m;
  if (!TakeMemory<Tile>(*p, order, call, &m))
    return call->fail(call, kAnyopOutOfMemory, "no memory for grad_q in float32");
  const Launch prepare = LaunchOf(p->a.items, kEndThreads, 0);
  if (const int32_t status = prepare.Run(call, PrepareGradient<T>, *p, m)) return status;
  const int blocks = std::min(order.items, limits.multiprocessors);
  const Launch grade = {dim3(static_cast<unsigned>(blocks)), dim3(Tile::kThreads),
                        Tile::kSharedBytes, true};
  if (const int32_t status = grade.Run(call, kernel, maps, *p, FactorsOf(p->a), m, order))
    return status;
  Launch end = LaunchOf(p->a.items + (p->grad_sinks ? p->a.H : 0), kEndThreads, 0);
  end.overlaps = true;
  return end.Run(call, EndGradient<T, HopperGradientTile<kD, kE, false>>, *p, m, order);
}

template <typename T, int kD, int kE>
int32_t RunCapped(GradientView* p, const AnyopTensor* const (&rows)[4], AnyopCall* call) {
  if (!(p->a.softcap > 0)) return RunGradients<T, kD, kE, false>(p, rows, call);
  if constexpr (kD > 128) {  // registers do not do
    return DeclineGradients(call);
  } else {
    return RunGradients<T, kD, kE, true>(p, rows, call);
  }
}

template <typename T>
int32_t RunFeatures(GradientView* p, const AnyopTensor* const (&rows)[4], AnyopCall* call) {
  const int D = p->a.D, E = p->a.E;
  if (D <= 64 && E <= 64) return RunCapped<T, 64, 64>(p, rows, call);
  if (D <= 128 && E <= 128) return RunCapped<T, 128, 128>(p, rows, call);
  if (D <= 192 && E <= 128) return RunCapped<T, 192, 128>(p, rows, call);
  return DeclineGradients(call);
}

template <bool kPacked, typename Args>
int32_t Grade(const Args& args, AnyopCall* call) {
  if (const int32_t status = CheckSoftcap(call, args.softcap)) return status;
  GradientView p = MakeView<kPacked>(args, 64, 128);
  const auto is_fit = [](const AnyopTensor* x) { return !x || HasAlignedGradient(*x); };
  const bool is_aligned = is_fit(args.grad_out) && is_fit(args.q) && is_fit(args.k) &&
                          is_fit(args.v) && is_fit(args.out) && is_fit(args.grad_q) &&
                          is_fit(args.grad_k) && is_fit(args.grad_v);
  if (p.a.mask || p.a.slopes || !(p.a.scale > 0) || args.S == 0 || args.T == 0 || args.D == 0 ||
      args.E == 0 || args.H == 0 || p.B == 0 || !is_aligned)
    return DeclineGradients(call);
  const auto run = [&](const AnyopTensor* const(&rows)[4]) {
    return AnyopDtypeOf(args.q) == kAnyopFloat16 ? RunFeatures<__half>(&p, rows, call)
                                                 : RunFeatures<__nv_bfloat16>(&p, rows, call);
  };
  if constexpr (kPacked) {
    HeadsFirst q(args.q, 0, args.S), k(args.k, 0, args.T), v(args.v, 0, args.T);
    HeadsFirst grad(args.grad_out, 0, args.S);
    return run({q.get(), k.get(), v.get(), grad.get()});
  } else {
    return run({args.q, args.k, args.v, args.grad_out});
  }
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_attention_backward_cuda_sm90(const AttentionBackwardArgs* args,
                                                      AnyopCall* call) {
  return anyop::cuda::Grade<false>(*args, call);
}
extern "C" int32_t anyop_attention_varlen_backward_cuda_sm90(
    const AttentionVarlenBackwardArgs* args, AnyopCall* call) {
  return anyop::cuda::Grade<true>(*args, call);
}
