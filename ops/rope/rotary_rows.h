// SPDX-License-Identifier: Apache-2.0
// Heads turned by angles from a table, on CUDA: what rope and its relatives have in common, and the
// kernel of those that do nothing else.
#pragma once

#include "anyop/cuda_map.h"
#include "anyop/cuda_row.h"
#include "rotary_checks.h"

// Who does what: the elements of a head are cut into units of two pieces, a and b, of 16 bytes. The
// partners of a's elements are those of b (interleaved: their neighbours in a, and likewise b's).
// A thread turns one unit of up to kHeads heads of a token, by angles that it reads once, in
// float32 (float64), and writes where it read: results may be the inputs. Where heads or tables are
// not aligned or heads divide into no such pieces, and in float64, a piece is one element.
namespace anyop::cuda {
namespace {

constexpr int kHeads = 2;

// ---- units ----

struct Unit {
  int64_t a, b;  // where its pieces begin in a head; b is -1 where there is none
  bool turns;
};

// kPer elements, by as many loads of 16 bytes as they take.
template <int kPer, typename W, typename T>
__device__ Piece<W, kPer> ReadPieces(const T* from, bool aligned) {
  constexpr int kOfLoad = kPer < kPerVector<T> ? 1 : kPerVector<T>;
  Piece<W, kPer> piece;
#pragma unroll
  for (int k = 0; k < kPer; k += kOfLoad) {
    const auto some = ReadPiece<kOfLoad>(from + k, aligned);
#pragma unroll
    for (int j = 0; j < kOfLoad; ++j) piece.at[k + j] = static_cast<W>(some.at[j]);
  }
  return piece;
}

// Pieces of a unit: 16 bytes, or one element.
template <typename T, int kPiece>
struct PiecesOf {
  using W = Wide<T>;
  static constexpr int kPer = kPiece, kMaxThreads = kPer > 1 ? 128 : 512;
  using Held = std::conditional_t<(kPer > 1), uint4, T>;

  __device__ static Held Read(const char* head, int64_t at) {
    const T* from = reinterpret_cast<const T*>(head) + at;
    if constexpr (kPer > 1) {
      return LoadNow(reinterpret_cast<const uint4*>(from));
    } else {
      return *from;
    }
  }
  __device__ static Piece<W, kPer> Widened(const Held& held) {
    Piece<W, kPer> piece;
    if constexpr (kPer > 1) {
      const Unpacked<T> wide = Unpack<T>(held);
#pragma unroll
      for (int k = 0; k < kPer; ++k) piece.at[k] = wide.at[k];
    } else {
      piece.at[0] = Widen(held);
    }
    return piece;
  }
  __device__ static void Write(char* head, int64_t at, bool aligned, const Piece<W, kPer>& v) {
    WritePiece<kPer>(reinterpret_cast<T*>(head) + at, aligned, v);
  }
  __device__ static void Copy(char* head, int64_t at, bool aligned, const Held& held) {
    T* to = reinterpret_cast<T*>(head) + at;
    if constexpr (kPer > 1) {
      StoreAt(to, aligned, held);
    } else {
      *to = held;
    }
  }
  // Of a table or a weight, of the heads' dtype or float32.
  __device__ static Piece<W, kPer> ReadFactors(const char* data, int64_t at, AnyopDtype dtype,
                                               bool aligned) {
    if (dtype == kDtypeOf<T>)
      return ReadPieces<kPer, W>(reinterpret_cast<const T*>(data) + at, aligned);
    return ReadPieces<kPer, W>(reinterpret_cast<const float*>(data) + at, aligned);
  }
};

// Calls f(s, k) for element k of pieces s of a unit.
template <typename In, typename F>
__device__ void ForEach(const F& f) {
#pragma unroll
  for (int s = 0; s < 2; ++s) {
#pragma unroll
    for (int k = 0; k < In::kPer; ++k) f(s, k);
  }
}

template <typename In>
struct HeldUnit {
  typename In::Held of[2] = {};

  __device__ void Read(const char* head, const Unit& unit) {
    of[0] = In::Read(head, unit.a);
    if (unit.b >= 0) of[1] = In::Read(head, unit.b);
  }
};
template <typename In>
struct UnitOf {  // as float or double
  Piece<typename In::W, In::kPer> of[2];

  UnitOf() = default;
  __device__ explicit UnitOf(const HeldUnit<In>& held)
      : of{In::Widened(held.of[0]), In::Widened(held.of[1])} {}
  __device__ void Write(char* head, const Unit& unit, bool aligned) const {
    In::Write(head, unit.a, aligned, of[0]);
    if (unit.b >= 0) In::Write(head, unit.b, aligned, of[1]);
  }
};
template <typename In>
__device__ UnitOf<In> ReadFactors(const char* data, const Unit& unit, AnyopDtype dtype,
                                  bool aligned) {
  UnitOf<In> found = {};
  found.of[0] = In::ReadFactors(data, unit.a, dtype, aligned);
  if (unit.b >= 0) found.of[1] = In::ReadFactors(data, unit.b, dtype, aligned);
  return found;
}

// ---- the table ----

struct RotaryTable {
  const char *cos, *sin;
  int64_t cos_bytes, sin_bytes;  // from row to row
  AnyopDtype dtype;
  bool interleaved;
  bool transposed;  // the gradient's: sums over what an element was used for
};

// The row of the table for a token, by its place in `positions`, else in its sequence.
struct TableRows {
  const char* positions;
  bool wide;            // int64, else int32
  const int32_t* ends;  // of sequences, cu_seqlens
  int64_t N, P;

  // -1: of no sequence. Out of range: the nearest row.
  __device__ int64_t Find(int64_t place) const {
    int64_t row = place;
    if (positions) {
      row = wide ? reinterpret_cast<const int64_t*>(positions)[place]
                 : int64_t{reinterpret_cast<const int32_t*>(positions)[place]};
    } else if (ends) {
      int64_t begun = 0;  // sequences
      for (int64_t most = N + 1; begun < most;) {
        const int64_t middle = (begun + most) / 2;
        if (ends[middle] <= place) {
          begun = middle + 1;
        } else {
          most = middle;
        }
      }
      if (begun == 0 || place >= ends[N]) return -1;
      row = place - ends[begun - 1];
    }
    return row < 0 ? 0 : row < P ? row : P - 1;
  }
};

// What each element of a unit is multiplied with, and its partner.
template <typename In>
struct Angles {
  using W = typename In::W;
  static constexpr int kPer = In::kPer;
  UnitOf<In> own, partners;
  bool within;  // partners lie side by side

  __device__ void Read(const RotaryTable& table, int64_t row, const Unit& unit) {
    within = kPer > 1 && table.interleaved;
    own = ReadFactors<In>(table.cos + row * table.cos_bytes, unit, table.dtype, true);
    const UnitOf<In> sin =
        ReadFactors<In>(table.sin + row * table.sin_bytes, unit, table.dtype, true);
    ForEach<In>([&](int s, int k) {
      const bool second = within ? k % 2 : s;  // of its pair
      const W v = table.transposed ? Partner(sin, s, k) : sin.of[s].at[k];
      partners.of[s].at[k] = second == table.transposed ? -v : v;
    });
  }
  __device__ UnitOf<In> Turn(const UnitOf<In>& v) const {
    UnitOf<In> turned;
    ForEach<In>([&](int s, int k) {
      turned.of[s].at[k] =
          MulAdd(v.of[s].at[k], own.of[s].at[k], Partner(v, s, k) * partners.of[s].at[k]);
    });
    return turned;
  }

 private:
  __device__ W Partner(const UnitOf<In>& v, int s, int k) const {
    return within ? v.of[s].at[(k ^ 1) % kPer] : v.of[1 - s].at[k];
  }
};

// ---- what a kernel gets ----

// n / d for n up to `most`.
struct Quotient {
  int64_t value = 1;
  Divisor divisor;
  bool small = true;

  Quotient() = default;
  Quotient(int64_t d, int64_t most) : value(d), small(most < INT64_C(0x7fffffff)) {
    if (small) divisor = Divisor(d);
  }
  __device__ int64_t Divide(int64_t n) const {
    return small ? int64_t{divisor.Divide(static_cast<uint32_t>(n))} : n / value;
  }
};

// kOf tensors of queries, then as many of keys; the last of each is its result. NULL: not there.
template <int kOf>
struct RotaryOperands {
  static constexpr int kTensors = 2 * kOf;

  Walk<kTensors + 1> tokens;  // the last operand: the place that TableRows looks at
  char* data[kTensors];
  int64_t head_bytes[kTensors];  // from head to head
  int64_t heads[2], D, R;
  int64_t turned, units;  // of a head
  int item_bytes;
  AnyopDtype dtype;
  bool aligned = true;  // the results
  RotaryTable table;
  TableRows rows;

  template <typename Args>
  RotaryOperands(const Args* args, const AnyopTensor* cu_seqlens, bool transposed,
                 const AnyopTensor* const (&tensors)[kTensors])
      : RotaryOperands(Views(args->positions, tensors)) {
    const AnyopTensor &cos = *args->cos, &sin = *args->sin;
    D = args->D;
    R = args->R;
    const int64_t bytes = cos.dtype_bits / 8;
    table = {static_cast<const char*>(cos.data),
             static_cast<const char*>(sin.data),
             args->P > 1 ? cos.strides[0] * bytes : 0,
             args->P > 1 ? sin.strides[0] * bytes : 0,
             AnyopDtypeOf(&cos),
             args->interleaved != 0,
             transposed};
    vectors_ = IsAligned(table.cos, 16) && IsAligned(table.sin, 16) && table.cos_bytes % 16 == 0 &&
               table.sin_bytes % 16 == 0;
    const AnyopTensor* positions = args->positions;
    rows = {positions ? static_cast<const char*>(positions->data) : nullptr,
            positions && positions->dtype_bits == 64,
            cu_seqlens ? static_cast<const int32_t*>(cu_seqlens->data) : nullptr,
            cu_seqlens ? cu_seqlens->shape[0] - 1 : 0, args->P};
    for (int side = 0; side < 2; ++side) {
      const AnyopTensor* first = tensors[side * kOf];
      heads[side] = first ? first->shape[first->ndim - 2] : 0;
      for (int t = 0; t < kOf; ++t) Place(side * kOf + t, tensors[side * kOf + t]);
      const AnyopTensor* result = tensors[side * kOf + kOf - 1];
      aligned = aligned && (!result || LiesIn(*result, 16 / item_bytes));
      for (int t = 0; t < kOf - 1; ++t)
        vectors_ = vectors_ && (!first || LiesIn(*tensors[side * kOf + t], 16 / item_bytes));
    }
  }

  // By what is read alone, so that the bits do not depend on where results go.
  bool FitVectors(int per) const { return vectors_ && D % per == 0 && R / 2 % per == 0; }
  // copies: what does not turn is written too.
  void CutHeads(int per, bool copies) {
    turned = R / 2 / per;
    units = turned + (copies ? CeilDiv((D - R) / per, 2) : 0);
  }

  template <int kPer>
  __device__ Unit UnitAt(int64_t unit) const {
    if (unit < turned) {
      const int64_t at = unit * kPer;
      return table.interleaved ? Unit{2 * at, 2 * at + kPer, true} : Unit{at, at + R / 2, true};
    }
    const int64_t at = R + 2 * (unit - turned) * kPer;
    return {at, at + kPer < D ? at + kPer : -1, false};
  }
  // Head `index` of the queries or the keys in tensor t of them.
  __device__ char* HeadAt(const Places<kTensors + 1>& token, int t, bool of_keys,
                          int64_t index) const {
    char* from = of_keys ? data[kOf + t] : data[t];
    return from + (of_keys ? token.at[kOf + t] : token.at[t]) * item_bytes +
           index * (of_keys ? head_bytes[kOf + t] : head_bytes[t]);
  }

 private:
  // Tensors without heads and elements, and the place in `positions` or in a sequence.
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
  explicit RotaryOperands(const Views& views)
      : tokens(views.all, -1),
        item_bytes(views.tensors[0].dtype_bits / 8),
        dtype(AnyopDtypeOf(&views.tensors[0])) {}

  void Place(int t, const AnyopTensor* tensor) {
    data[t] = tensor ? static_cast<char*>(tensor->data) : nullptr;
    head_bytes[t] = tensor ? tensor->strides[tensor->ndim - 2] * item_bytes : 0;
  }
  // In pieces of 16 bytes.
  static bool LiesIn(const AnyopTensor& tensor, int64_t per) {
    bool lies = IsAligned(static_cast<const char*>(tensor.data), 16);
    for (int d = 0; d < tensor.ndim - 1; ++d)
      lies = lies && (tensor.shape[d] == 1 || tensor.strides[d] % per == 0);
    return lies;
  }

  bool vectors_;
};

// Threads of a kernel over units of heads: a team of `lanes` for up to kHeads of a token's heads,
// which lie `slots` apart.
struct RotaryTeams {
  int64_t lanes, slots, items;
  Quotient by_lanes, by_slots;

  RotaryTeams(int64_t lanes_, int64_t heads, int64_t tokens, int64_t threads_wanted)
      : lanes(lanes_), slots(CeilDiv(heads, kHeads)) {
    if (tokens * slots * lanes < threads_wanted) slots = heads;
    items = tokens * slots * lanes;
    by_lanes = Quotient(lanes, items);
    by_slots = Quotient(slots, items);
  }
};

// A unit of each head of one thread, read.
template <typename In>
struct HeadsOfThread {
  Places<5> token;
  bool of_keys[kHeads];
  HeldUnit<In> held[kHeads];
  char* out[kHeads];  // NULL: there is no such head

  __device__ HeadsOfThread(const RotaryOperands<2>& p, const RotaryTeams& teams, int64_t team,
                           const Unit& unit, bool holds) {
    const int64_t number = teams.by_slots.Divide(team), slot = team - number * teams.slots;
    token = PlacesOf(p.tokens, number);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const int64_t head = slot + h * teams.slots;
      of_keys[h] = head >= p.heads[0];
      const int64_t index = of_keys[h] ? head - p.heads[0] : head;
      const bool exists = holds && head < p.heads[0] + p.heads[1];
      out[h] = exists ? p.HeadAt(token, 1, of_keys[h], index) : nullptr;
      if (exists) held[h].Read(p.HeadAt(token, 0, of_keys[h], index), unit);
    }
  }
};

// ---- the kernel of rope and its relatives ----

template <typename In>
__global__ void __launch_bounds__(kMapThreads)
    TurnHeads(const __grid_constant__ RotaryOperands<2> p,
              const __grid_constant__ RotaryTeams teams) {
  for (int64_t item = int64_t{blockIdx.x} * kMapThreads + threadIdx.x; item < teams.items;
       item += int64_t{gridDim.x} * kMapThreads) {
    const int64_t team = teams.by_lanes.Divide(item);
    const Unit unit = p.UnitAt<In::kPer>(item - team * teams.lanes);
    const HeadsOfThread<In> mine(p, teams, team, unit, true);
    const int64_t row = unit.turns ? p.rows.Find(mine.token.at[4]) : -1;
    Angles<In> angles;
    if (row >= 0) angles.Read(p.table, row, unit);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (!mine.out[h]) continue;
      if (row >= 0) {
        angles.Turn(UnitOf<In>(mine.held[h])).Write(mine.out[h], unit, p.aligned);
      } else {
        In::Copy(mine.out[h], unit.a, p.aligned, mine.held[h].of[0]);
        if (unit.b >= 0) In::Copy(mine.out[h], unit.b, p.aligned, mine.held[h].of[1]);
      }
    }
  }
}

// ---- norms of heads ----

// What the RMS norm of a head is made of besides its elements.
template <typename W>
struct HeadNorm {
  const char* weight[2];  // of queries, of keys
  AnyopDtype dtype;
  bool aligned;
  W offset, eps, inverse_D;

  template <typename Args>
  explicit HeadNorm(const Args* args)
      : weight{static_cast<const char*>(args->q_weight->data),
               static_cast<const char*>(args->k_weight->data)},
        dtype(AnyopDtypeOf(args->q_weight)),
        aligned(IsAligned(weight[0], 16) && IsAligned(weight[1], 16)),
        offset(static_cast<W>(args->weight_offset)),
        eps(EpsilonOf<W>(args->eps)),
        inverse_D(1 / static_cast<W>(args->D)) {}

  template <typename In>
  __device__ UnitOf<In> WeightsOf(bool of_keys, const Unit& unit) const {
    UnitOf<In> w = ReadFactors<In>(of_keys ? weight[1] : weight[0], unit, dtype, aligned);
    ForEach<In>([&](int s, int k) { w.of[s].at[k] += offset; });
    return w;
  }
  // 1 / the root mean square.
  __device__ W Scale(W squares) const { return ReciprocalRoot(MulAdd(squares, inverse_D, eps)); }
};

// ---- launches ----

// Calls body with the PiecesOf units of the operands.
template <int kOf, typename Body>
int32_t WithPieces(const RotaryOperands<kOf>& p, const Body& body) {
  return WithFloating(p.dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) < 8) {  // float64, which GPUs are slow at, is not worth their size
      if (p.FitVectors(kPerVector<T>)) return body(PiecesOf<T, kPerVector<T>>());
    }
    return body(PiecesOf<T, 1>());
  });
}

// Threads that keep the device busy.
inline int32_t ThreadsWanted(AnyopCall* call, int64_t* threads) {
  Limits limits;
  if (int32_t status = ReadLimits(call, &limits)) return status;
  *threads = int64_t{limits.multiprocessors} * 2048;
  return kAnyopOk;
}

// Turns q to q_out and k to k_out, both of which may be NULL; back, where transposed.
template <typename Args>
int32_t RunRotation(AnyopCall* call, const Args* args, bool transposed,
                    const AnyopTensor* const (&tensors)[4]) {
  if (args->numel_X * args->S == 0 || (!tensors[0] && !tensors[2])) return kAnyopOk;
  if (!args->positions && !args->cu_seqlens) {
    if (int32_t status = CheckLength(call, args->S, args->P)) return status;
  }
  RotaryOperands<2> p(args, args->cu_seqlens, transposed, tensors);
  const int64_t heads = p.heads[0] + p.heads[1];
  int64_t wanted = 0;
  if (int32_t status = ThreadsWanted(call, &wanted)) return status;
  return WithPieces(p, [&](auto in) {
    using In = decltype(in);
    p.CutHeads(In::kPer, p.data[0] != p.data[1] || p.data[2] != p.data[3]);
    if (heads * p.units == 0) return int32_t{kAnyopOk};
    const RotaryTeams teams(p.units, heads, p.tokens.items, wanted);
    return MapLaunch(teams.items).Run(call, TurnHeads<In>, p, teams);
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
