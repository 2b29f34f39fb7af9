// SPDX-License-Identifier: Apache-2.0
// Units of heads and how they turn, in a thread's registers, on CUDA: what rotary_rows.h works
// with.
#pragma once

#include "anyop/cuda/map.h"
#include "anyop/cuda/row_operands.h"

// Who does what: the elements of a head are cut into units of two pieces, a and b, of 16 bytes. The
// partners of a's elements are those of b (interleaved: their neighbours in a, and likewise b's).
// A thread turns one unit of a few heads of a token, by angles that it reads once, in float32
// (float64), and writes where it read: results may be the inputs. What is read stays packed until
// it is used, and all of it is on its way before any of it is. Where heads or tables are not
// aligned or heads divide into no such pieces, and in float64, a piece is one element.
namespace anyop::cuda {
namespace {

// ---- units ----

struct Unit {
  int a, b;  // where its pieces begin in a head; one piece alone is both
  bool turns;
};

template <typename W>
struct Couple {
  W first, second;
};

// kPer elements as they lie in memory: 16 bytes or more, or one element, of which `second` is none.
template <typename T, int kPer>
struct Packed {
  using W = Wide<T>;
  static constexpr int kCouples = kPer > 1 ? kPer / 2 : 1;
  static constexpr int kLoads = kPer > 1 ? kPer / kPerVector<T> : 1;
  static constexpr int kOfLoad = kCouples / kLoads;
  std::conditional_t<(kPer > 1), uint4, T> loads[kLoads];

  __device__ void Read(const char* data, int at) {
    const T* from = reinterpret_cast<const T*>(data) + at;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if constexpr (kPer > 1) {
        loads[i] = LoadNow(reinterpret_cast<const uint4*>(from) + i);
      } else {
        loads[i] = *from;
      }
    }
  }
  // A table's or a weight's; one element may be of another dtype.
  __device__ void Read(const char* data, int at, AnyopDtype dtype) {
    if constexpr (kPer > 1) {
      Read(data, at);
    } else {
      loads[0] = ReadFloating<T>(data, at, dtype);
    }
  }
  __device__ void Write(char* data, int at, bool aligned = true) const {
    T* to = reinterpret_cast<T*>(data) + at;
    if constexpr (kPer > 1) {
      StoreAt(to, aligned, loads[0]);
    } else {
      *to = loads[0];
    }
  }
  __device__ Couple<W> operator[](int i) const {
    if constexpr (kPer == 1) {
      return {Widen(loads[0]), W(0)};
    } else {
      const uint4& of = loads[i / kOfLoad];
      const unsigned words[4] = {of.x, of.y, of.z, of.w};
      const int at = i % kOfLoad;
      if constexpr (sizeof(T) == 4)
        return {__uint_as_float(words[2 * at]), __uint_as_float(words[2 * at + 1])};
      else
        return {WidenLow(T(), words[at]), WidenHigh(T(), words[at])};
    }
  }
  __device__ void Set(int i, const Couple<W>& v) {
    if constexpr (kPer == 1) {
      loads[0] = Narrow<T>(v.first);
    } else if constexpr (sizeof(T) == 4) {
      (i ? loads[0].z : loads[0].x) = __float_as_uint(v.first);
      (i ? loads[0].w : loads[0].y) = __float_as_uint(v.second);
    } else {
      uint4& to = loads[0];
      (i == 0 ? to.x : i == 1 ? to.y : i == 2 ? to.z : to.w) = NarrowTwo(T(), v.first, v.second);
    }
  }
};

// Pieces of a unit: 16 bytes, or one element; tables of TTable.
template <typename T, int kPiece, typename TTable>
struct PiecesOf {
  using W = Wide<T>;
  static constexpr int kPer = kPiece, kMaxThreads = kPer > 1 ? 128 : 512;
  static constexpr int kCouples = Packed<T, kPer>::kCouples;
  using Table = Packed<TTable, kPer>;
  using Type = T;
};

template <typename In>
struct HeldUnit {
  Packed<typename In::Type, In::kPer> of[2];

  __device__ void Read(const char* head, const Unit& unit) {
    of[0].Read(head, unit.a);
    of[1].Read(head, unit.b);
  }
  __device__ void Write(char* head, const Unit& unit, bool aligned) const {
    of[0].Write(head, unit.a, aligned);
    of[1].Write(head, unit.b, aligned);
  }
};

// ---- the table ----

struct RotaryTable {
  const char *cos, *sin;
  int64_t cos_bytes, sin_bytes;  // from row to row
  AnyopDtype dtype;
  bool interleaved;
};

// The row of the table for a token, by its place in `positions`, else in its sequence.
struct TableRows {
  const char* positions;
  bool wide;            // int64, else int32
  const int32_t* ends;  // of sequences, cu_seqlens
  int64_t N, P;

  // The position at a place: what Find needs and is best read early.
  __device__ int64_t Read(int64_t place) const {
    if (!positions) return place;
    return wide ? reinterpret_cast<const int64_t*>(positions)[place]
                : int64_t{reinterpret_cast<const int32_t*>(positions)[place]};
  }
  // -1: of no sequence. Out of range: the nearest row.
  __device__ int64_t Find(int64_t row) const {
    if (ends && !positions) {
      const int64_t place = row;
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

// Turns x and y, partners; kBack: the gradient, sums over what an element was used for.
template <bool kBack, typename W>
__device__ void TurnPair(W& x, W& y, W cos_x, W cos_y, W sin_x, W sin_y) {
  const W from_y = kBack ? sin_y : -sin_x, from_x = kBack ? -sin_x : sin_y, before = x;
  x = MulAdd(x, cos_x, y * from_y);
  y = MulAdd(y, cos_y, before * from_x);
}

template <typename In, bool kBack>
struct Angles {
  using W = typename In::W;
  typename In::Table cos[2], sin[2];

  __device__ void Read(const RotaryTable& table, int64_t row, const Unit& unit) {
    const char *of_cos = table.cos + row * table.cos_bytes,
               *of_sin = table.sin + row * table.sin_bytes;
    cos[0].Read(of_cos, unit.a, table.dtype);
    cos[1].Read(of_cos, unit.b, table.dtype);
    sin[0].Read(of_sin, unit.a, table.dtype);
    sin[1].Read(of_sin, unit.b, table.dtype);
  }
  // Couple i of a and b; kWithin: partners lie side by side in each.
  template <bool kWithin>
  __device__ void Turn(int i, Couple<W>& a, Couple<W>& b) const {
    const auto cos_a = cos[0][i], cos_b = cos[1][i], sin_a = sin[0][i], sin_b = sin[1][i];
    if constexpr (kWithin) {
      TurnPair<kBack, W>(a.first, a.second, cos_a.first, cos_a.second, sin_a.first, sin_a.second);
      TurnPair<kBack, W>(b.first, b.second, cos_b.first, cos_b.second, sin_b.first, sin_b.second);
    } else {
      TurnPair<kBack, W>(a.first, b.first, cos_a.first, cos_b.first, sin_a.first, sin_b.first);
      TurnPair<kBack, W>(a.second, b.second, cos_a.second, cos_b.second, sin_a.second,
                         sin_b.second);
    }
  }
};

// Calls body(turn) with a turn(i, a, b) of couples.
template <typename In, bool kBack, typename Body>
__device__ void WithTurn(const Angles<In, kBack>& angles, bool interleaved, const Body& body) {
  using Two = Couple<typename In::W>;
  if (In::kPer > 1 && interleaved) {
    body([&](int i, Two& a, Two& b) { angles.template Turn<true>(i, a, b); });
  } else {
    body([&](int i, Two& a, Two& b) { angles.template Turn<false>(i, a, b); });
  }
}

}  // namespace
}  // namespace anyop::cuda
