// SPDX-License-Identifier: Apache-2.0
// Heads turned by angles from a table, on CUDA: what kernels of rope and its relatives get, and the
// kernel of those that do nothing else. Who does what stands in rotary_units.h.
#pragma once

#include "rotary_checks.h"
#include "rotary_units.h"

namespace anyop::cuda {
namespace {

// ---- what a kernel gets ----

// Tokens in up to kDims dimensions, the last one innermost; fewer than 2^31.
template <int kOperands>
struct TokenWalk {
  static constexpr int kDims = 4;
  int ndim;
  Divisor size[kDims];
  int64_t step[kOperands][kDims];  // in bytes; the last operand's in elements

  __device__ Places<kOperands> Find(uint32_t token) const {
    Places<kOperands> places;
    const auto go = [&](int d, uint32_t here) {
#pragma unroll
      for (int o = 0; o < kOperands; ++o) places.at[o] += here * step[o][d];
    };
#pragma unroll 1
    for (int d = ndim - 1; d > 0; --d) {
      const uint32_t outer = size[d].Divide(token);
      go(d, token - outer * size[d].value);
      token = outer;
    }
    go(0, token);
    return places;
  }
};

// kOf tensors of queries, then as many of keys; the last of each is its result. NULL: not there.
template <int kOf>
struct RotaryOperands {
  static constexpr int kTensors = 2 * kOf;

  char* data[kTensors];
  int64_t head_bytes[kTensors];    // from head to head
  TokenWalk<kTensors + 1> tokens;  // the last operand: the place that TableRows looks at
  int64_t first_place = 0;
  int heads[2], D, R, turned, units;  // of a head
  bool aligned = true;                // the results
  RotaryTable table;
  TableRows rows;

  template <typename Args>
  RotaryOperands(const Args* args, const AnyopTensor* cu_seqlens,
                 const AnyopTensor* const (&tensors)[kTensors])
      : D(static_cast<int>(args->D)), R(static_cast<int>(args->R)) {
    const AnyopTensor &cos = *args->cos, &sin = *args->sin;
    const int64_t bytes = cos.dtype_bits / 8;
    table = {static_cast<const char*>(cos.data),
             static_cast<const char*>(sin.data),
             args->P > 1 ? cos.strides[0] * bytes : 0,
             args->P > 1 ? sin.strides[0] * bytes : 0,
             AnyopDtypeOf(&cos),
             args->interleaved != 0};
    vectors_ = IsAligned(table.cos, 16) && IsAligned(table.sin, 16) && table.cos_bytes % 16 == 0 &&
               table.sin_bytes % 16 == 0;
    const AnyopTensor* positions = args->positions;
    rows = {positions ? static_cast<const char*>(positions->data) : nullptr,
            positions && positions->dtype_bits == 64,
            cu_seqlens ? static_cast<const int32_t*>(cu_seqlens->data) : nullptr,
            cu_seqlens ? cu_seqlens->shape[0] - 1 : 0, args->P};
    for (int side = 0; side < 2; ++side) {
      const AnyopTensor* first = tensors[side * kOf];
      heads[side] = first ? static_cast<int>(first->shape[first->ndim - 2]) : 0;
      for (int t = 0; t < kOf; ++t) {
        const AnyopTensor* tensor = tensors[side * kOf + t];
        const int o = side * kOf + t;
        data[o] = tensor ? static_cast<char*>(tensor->data) : nullptr;
        head_bytes[o] = tensor ? tensor->strides[tensor->ndim - 2] * (tensor->dtype_bits / 8) : 0;
        bool& fits = t < kOf - 1 ? vectors_ : aligned;
        fits = fits && (!tensor || LiesIn(*tensor));
      }
    }
  }

  // By what is read alone: where bits depend on who adds what, they do not on where results go.
  bool FitVectors(int per) const { return vectors_ && D % per == 0 && R / 2 % per == 0; }
  // copies: what does not turn is written too.
  void CutHeads(int per, bool copies) {
    turned = R / 2 / per;
    units = turned + (copies ? static_cast<int>(CeilDiv((D - R) / per, 2)) : 0);
  }

  template <int kPer>
  __device__ Unit UnitAt(int unit) const {
    if (unit < turned) {
      const int at = unit * kPer;
      return table.interleaved ? Unit{2 * at, 2 * at + kPer, true} : Unit{at, at + R / 2, true};
    }
    const int at = R + 2 * (unit - turned) * kPer;
    return {at, at + kPer < D ? at + kPer : at, false};
  }
  // Head `index` of the queries or the keys in tensor t of them.
  __device__ char* HeadAt(const Places<kTensors + 1>& token, int t, bool of_keys,
                          unsigned index) const {
    return (of_keys ? data[kOf + t] + token.at[kOf + t] : data[t] + token.at[t]) +
           index * (of_keys ? head_bytes[kOf + t] : head_bytes[t]);
  }
  __device__ int64_t PlaceOf(const Places<kTensors + 1>& token) const {
    return first_place + token.at[kTensors];
  }

  // Goes to index `at` of dimension d.
  void Move(const Walk<kTensors + 1>& walk, int item_bytes, int d, int64_t at) {
    for (int t = 0; t < kTensors; ++t) {
      if (data[t]) data[t] += at * walk.step[t][d] * item_bytes;
    }
    first_place += at * walk.step[kTensors][d];
  }
  // Takes n of dimension d, and all of those behind it.
  void Take(const Walk<kTensors + 1>& walk, int item_bytes, int d, int64_t n) {
    tokens.ndim = walk.ndim > d ? walk.ndim - d : 1;
    for (int i = 0; i < tokens.ndim; ++i) {
      tokens.size[i] = Divisor(i ? walk.size[d + i] : n);
      for (int o = 0; o <= kTensors; ++o)
        tokens.step[o][i] = walk.step[o][d + i] * (o < kTensors ? item_bytes : 1);
    }
  }

 private:
  // In pieces of 16 bytes.
  static bool LiesIn(const AnyopTensor& tensor) {
    const int per = 128 / tensor.dtype_bits;
    bool lies = IsAligned(static_cast<const char*>(tensor.data), 16);
    for (int d = 0; d < tensor.ndim - 1; ++d)
      lies = lies && (tensor.shape[d] == 1 || tensor.strides[d] % per == 0);
    return lies;
  }

  bool vectors_;
};

// The tokens of tensors: their places without heads and elements, and that in `positions` or in a
// sequence.
template <int kOf>
struct RotaryTokens {
  static constexpr int kTensors = 2 * kOf;
  Walk<kTensors + 1> walk;
  AnyopDtype dtype;
  int item_bytes;

  RotaryTokens(const AnyopTensor* positions, const AnyopTensor* const (&tensors)[kTensors])
      : RotaryTokens(Views(positions, tensors)) {}

  // Calls run(p, tokens) for parts of the tokens, almost always one: of at most so many tokens, and
  // in few dimensions.
  template <typename F>
  int32_t EachPart(const RotaryOperands<kOf>& all, int64_t most, const F& run, int d = 0) const {
    int64_t inner = 1;
    for (int i = d + 1; i < walk.ndim; ++i) inner *= walk.size[i];
    const bool deeper = inner > most || walk.ndim - d > TokenWalk<1>::kDims;
    const int64_t size = walk.ndim ? walk.size[d] : 1, part = deeper ? 1 : most / inner;
    for (int64_t at = 0; at < size; at += part) {
      const int64_t n = size - at < part ? size - at : part;
      RotaryOperands<kOf> p = all;
      p.Move(walk, item_bytes, d, at);
      if (!deeper) p.Take(walk, item_bytes, d, n);
      if (int32_t status = deeper ? EachPart(p, most, run, d + 1) : run(p, n * inner))
        return status;
    }
    return kAnyopOk;
  }

 private:
  struct Views {
    AnyopTensor tensors[kTensors + 1];
    const AnyopTensor* all[kTensors + 1];
    int64_t strides[64] = {};

    Views(const AnyopTensor* positions, const AnyopTensor* const (&of)[kTensors]) {
      const AnyopTensor* any = of[0] ? of[0] : of[kOf];
      for (int t = 0; t <= kTensors; ++t) {
        tensors[t] = t < kTensors && of[t] ? *of[t] : *any;
        tensors[t].ndim = any->ndim - 2;
        all[t] = &tensors[t];
      }
      strides[any->ndim - 3] = 1;
      tensors[kTensors].strides = positions ? positions->strides : strides;
    }
  };
  explicit RotaryTokens(const Views& views)
      : walk(views.all, -1),
        dtype(AnyopDtypeOf(&views.tensors[0])),
        item_bytes(views.tensors[0].dtype_bits / 8) {}
};

// Threads of a kernel over units of heads: a team of `lanes` for up to kHeads heads of a token's
// queries, or of its keys, which lie of_side slots apart.
struct RotaryTeams {
  uint32_t items;
  Divisor lanes, slots;
  uint32_t of_side[2];

  RotaryTeams(int64_t lanes_, const int (&heads)[2], int per_thread, int64_t tokens)
      : lanes(lanes_),
        of_side{static_cast<uint32_t>(CeilDiv(heads[0], per_thread)),
                static_cast<uint32_t>(CeilDiv(heads[1], per_thread))} {
    slots = Divisor(of_side[0] + of_side[1]);
    items = static_cast<uint32_t>(tokens * slots.value * lanes_);
  }
  // Tokens whose threads have numbers below 2^31, those of the last block too.
  static int64_t MaxTokens(int64_t lanes, int64_t heads) {
    return (INT64_C(0x7fffffff) - 1024) / (lanes * (heads + 1));
  }
};

// A unit of each head of one thread, read; in place of a head that is not there, another one.
template <typename In, int kHeads>
struct HeadsOfThread {
  HeldUnit<In> held[kHeads];
  char* out;
  int64_t apart;  // its heads, in bytes of the result
  int count;
  bool of_keys;
  int64_t row;

  __device__ HeadsOfThread(const RotaryOperands<2>& p, const RotaryTeams& teams, uint32_t team,
                           const Unit& unit) {
    const uint32_t number = teams.slots.Divide(team), slot = team - number * teams.slots.value;
    const Places<5> token = p.tokens.Find(number);
    row = p.rows.Read(p.PlaceOf(token));
    of_keys = slot >= teams.of_side[0];
    const uint32_t first = of_keys ? slot - teams.of_side[0] : slot,
                   slots = of_keys ? teams.of_side[1] : teams.of_side[0],
                   heads = of_keys ? p.heads[1] : p.heads[0];
    const char* in = p.HeadAt(token, 0, of_keys, first);
    const int64_t apart_in = slots * (of_keys ? p.head_bytes[2] : p.head_bytes[0]);
    apart = slots * (of_keys ? p.head_bytes[3] : p.head_bytes[1]);
    out = p.HeadAt(token, 1, of_keys, first);
    held[0].Read(in, unit);
    count = 1;
#pragma unroll
    for (int h = 1; h < kHeads; ++h) {
      if (first + h * slots < heads) {
        in += apart_in;
        count = h + 1;
      }
      held[h].Read(in, unit);
    }
    row = unit.turns ? p.rows.Find(row) : -1;
  }
  __device__ void Write(const Unit& unit, bool aligned) const {
    char* to = out;
#pragma unroll
    for (int h = 0; h < kHeads; ++h, to += apart) {
      if (h < count) held[h].Write(to, unit, aligned);
    }
  }
};

// ---- the kernel of rope and its relatives ----

constexpr int kTurned = 2;  // heads of a thread

template <typename In, bool kBack>
__global__ void __launch_bounds__(kMapThreads, kTurned == 2 ? 8 : 5)
    TurnHeads(const __grid_constant__ RotaryOperands<2> p,
              const __grid_constant__ RotaryTeams teams) {
  using Two = Couple<typename In::W>;
  WaitForWork();
  LetNextStart();
  const uint32_t item = blockIdx.x * kMapThreads + threadIdx.x;
  if (item >= teams.items) return;
  const uint32_t team = teams.lanes.Divide(item);
  const Unit unit = p.UnitAt<In::kPer>(static_cast<int>(item - team * teams.lanes.value));
  HeadsOfThread<In, kTurned> mine(p, teams, team, unit);
  if (mine.row >= 0) {
    Angles<In, kBack> angles;
    angles.Read(p.table, mine.row, unit);
    WithTurn(angles, p.table.interleaved, [&](const auto& turn) {
#pragma unroll
      for (int i = 0; i < In::kCouples; ++i) {
#pragma unroll
        for (int h = 0; h < kTurned; ++h) {
          auto& of = mine.held[h].of;
          Two a = of[0][i], b = of[1][i];
          turn(i, a, b);
          of[0].Set(i, a);
          of[1].Set(i, b);
        }
      }
    });
  }
  mine.Write(unit, true);
}

// ---- launches ----

// Calls body with the PiecesOf units, in vectors or by elements.
template <typename Body>
int32_t WithPieces(AnyopDtype dtype, AnyopDtype of_table, bool vectors, const Body& body) {
  return WithFloating(dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) < 8) {  // float64, which GPUs are slow at, is not worth their size
      if (vectors && of_table == kDtypeOf<T>) return body(PiecesOf<T, kPerVector<T>, T>());
      if constexpr (sizeof(T) == 2) {
        if (vectors) return body(PiecesOf<T, kPerVector<T>, float>());
      }
    }
    return body(PiecesOf<T, 1, Wide<T>>());
  });
}

// Fails for heads that the kernels' numbers of 32 bits do not reach.
template <typename Args>
int32_t CheckHeads(AnyopCall* call, const Args* args, int64_t heads) {
  constexpr int64_t kMost = INT64_C(1) << 30;
  if (args->D < kMost && heads < kMost && (args->D / 2 + 32) * (heads + 1) < kMost) return kAnyopOk;
  return call->fail(call, kAnyopNotImplemented,
                    "the heads of one token have 2^31 elements or more, expected fewer on CUDA: "
                    "pass some of the heads at a time");
}
inline int64_t HeadsOf(const AnyopTensor* tensor) {
  return tensor ? tensor->shape[tensor->ndim - 2] : 0;
}

// Turns q to q_out and k to k_out, both of which may be NULL; back: kBack.
template <bool kBack, typename Args>
int32_t RunRotation(AnyopCall* call, const Args* args, const AnyopTensor* const (&tensors)[4]) {
  const int64_t heads = HeadsOf(tensors[0]) + HeadsOf(tensors[2]);
  if (args->numel_X * args->S == 0 || heads == 0) return kAnyopOk;
  if (!args->positions && !args->cu_seqlens) {
    if (int32_t status = CheckLength(call, args->S, args->P)) return status;
  }
  if (int32_t status = CheckHeads(call, args, heads)) return status;
  RotaryOperands<2> all(args, args->cu_seqlens, tensors);
  const RotaryTokens<2> tokens(args->positions, tensors);
  const int per = 16 / tokens.item_bytes;
  const bool vectors = all.FitVectors(per) && all.aligned;
  return WithPieces(tokens.dtype, all.table.dtype, vectors, [&](auto in) {
    using In = decltype(in);
    all.CutHeads(In::kPer, all.data[0] != all.data[1] || all.data[2] != all.data[3]);
    if (all.units == 0) return int32_t{kAnyopOk};
    return tokens.EachPart(all, RotaryTeams::MaxTokens(all.units, heads),
                           [&](const RotaryOperands<2>& p, int64_t count) {
                             const RotaryTeams teams(p.units, p.heads, kTurned, count);
                             Launch launch = MapLaunch(teams.items);
                             launch.overlaps = true;
                             return launch.Run(call, TurnHeads<In, kBack>, p, teams);
                           });
  });
}

// Runs run(q, q_out, k, k_out) for both at once, or for one after the other where the result of one
// is the memory of the other.
template <typename Args, typename Run>
int32_t RunQueryKey(AnyopCall* call, const Args* args, const Run& run) {
  bool k_first = false;
  if (int32_t status = OrderQueryKey(call, args->q, args->q_out, args->k, args->k_out, &k_first))
    return status;
  if (!k_first && !IsMemoryOf(args->k_out, args->q))
    return run({args->q, args->q_out, args->k, args->k_out});
  const AnyopTensor* const q[4] = {args->q, args->q_out, nullptr, nullptr};
  const AnyopTensor* const k[4] = {nullptr, nullptr, args->k, args->k_out};
  if (int32_t status = k_first ? run(k) : run(q)) return status;
  return k_first ? run(q) : run(k);
}

}  // namespace
}  // namespace anyop::cuda
