// SPDX-License-Identifier: Apache-2.0
// Rotation of pairs of elements by angles from a table: rows of the table for tokens, and heads.
#ifndef ANYOP_OPS_ROPE_ROTARY_H_
#define ANYOP_OPS_ROPE_ROTARY_H_

#include "anyop/cpu/rows.h"
#include "table_rows.h"

namespace anyop::cpu {

constexpr int64_t kPairs = kBlock / 2;  // rotated at a time

// cos and sin, (P, R): element j of a head turns with its partner, which is R/2 further, or its
// neighbour when they are interleaved.
struct Table {
  const AnyopTensor *cos, *sin;
  bool interleaved;
  bool transposed;  // the gradient's: sums over what an element was used for
  int64_t R() const { return cos->shape[1]; }
};

// Factors of n pairs: lo * cos_lo - hi * sin_lo and hi * cos_hi + lo * sin_hi.
template <typename Wide>
struct Angles {
  alignas(64) Wide cos_lo[kPairs], cos_hi[kPairs], sin_lo[kPairs], sin_hi[kPairs];

  // Of pairs [first, first + n) and one row of the table.
  void Read(const Table& table, int64_t row, int64_t first, int64_t n) {
    ReadPairs(table.cos, row, table.interleaved, first, n, cos_lo, cos_hi);
    Wide *lo = table.transposed ? sin_hi : sin_lo, *hi = table.transposed ? sin_lo : sin_hi;
    ReadPairs(table.sin, row, table.interleaved, first, n, lo, hi);
    if (!table.transposed) return;
    for (int64_t i = 0; i < n; ++i) sin_lo[i] = -sin_lo[i], sin_hi[i] = -sin_hi[i];
  }

  // Elements of row `row` of a (P, R) tensor, or of a (D) tensor, as pairs.
  static void ReadPairs(const AnyopTensor* from, int64_t row, bool interleaved, int64_t first,
                        int64_t n, Wide* lo, Wide* hi, int64_t R = -1) {
    const int64_t item = from->dtype_bits / 8, half = (R < 0 ? from->shape[1] : R) / 2;
    const char* at =
        static_cast<const char*>(from->data) + (row ? row * from->strides[0] * item : 0);
    if (!interleaved) {
      ReadWide(from, at + first * item, n, lo);
      return ReadWide(from, at + (half + first) * item, n, hi);
    }
    Wide both[2 * kPairs];
    ReadWide(from, at + 2 * first * item, 2 * n, both);
    for (int64_t i = 0; i < n; ++i) lo[i] = both[2 * i], hi[i] = both[2 * i + 1];
  }

  static void ReadWide(const AnyopTensor* of, const char* from, int64_t n, Wide* to) {
    const AnyopDtype dtype = AnyopDtypeOf(of);
    if (dtype == kDtype<Wide>) {
      __builtin_memcpy(to, from, static_cast<size_t>(n) * sizeof(Wide));
    } else if constexpr (kDtype<Wide> == kAnyopFloat32) {
      Widen(Types<float16, bfloat16>(), dtype, from, n, to);
    } else {
      Widen(Types<float>(), dtype, from, n, to);
    }
  }
};

// n pairs of one head; x and out are at their first element. out may be x.
template <bool kInterleaved, typename E, typename Wide>
inline void RotatePairs(int64_t n, int64_t half, const E* x, E* out, const Angles<Wide>& by,
                        Wide scale) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = kInterleaved ? 2 * i : i, other = kInterleaved ? at + 1 : at + half;
    const Wide lo = Load<Wide>(x[at]) * scale, hi = Load<Wide>(x[other]) * scale;
    Store(lo * by.cos_lo[i] - hi * by.sin_lo[i], out + at);
    Store(hi * by.cos_hi[i] + lo * by.sin_hi[i], out + other);
  }
}
// float16 by way of float32, with the processor's conversions.
template <bool kInterleaved>
inline void RotatePairs(int64_t n, int64_t half, const float16* x, float16* out,
                        const Angles<float>& by, float scale) {
  float block[2 * kPairs];
  if (kInterleaved) {
    WidenFrom(x, 2 * n, block);
    RotatePairs<true>(n, 0, block, block, by, scale);
    return NarrowTo(block, 2 * n, out);
  }
  WidenFrom(x, n, block);
  WidenFrom(x + half, n, block + n);
  RotatePairs<false>(n, n, block, block, by, scale);
  NarrowTo(block, n, out);
  NarrowTo(block + n, n, out + half);
}

// n pairs from number `first` on of the head at x.
template <typename Wide>
inline void RotateHead(AnyopDtype dtype, const Table& table, int64_t first, int64_t n,
                       const char* x, char* out, const Angles<Wide>& by, Wide scale) {
  const int64_t half = table.R() / 2, at = table.interleaved ? 2 * first : first;
  const auto rotate = [&](auto element) {
    using E = decltype(element);
    const E* from = reinterpret_cast<const E*>(x) + at;
    E* to = reinterpret_cast<E*>(out) + at;
    table.interleaved ? RotatePairs<true>(n, half, from, to, by, scale)
                      : RotatePairs<false>(n, half, from, to, by, scale);
  };
  if constexpr (kDtype<Wide> == kAnyopFloat32) {
    if (dtype == kAnyopFloat16) return rotate(float16());
    if (dtype == kAnyopBFloat16) return rotate(bfloat16());
  }
  rotate(Wide());
}

// A tensor (*X, S, H, D) and its result.
struct Heads {
  Rows x, out;
  const AnyopTensor *x_tensor, *out_tensor;

  Heads(const AnyopTensor* in, const AnyopTensor* result)
      : x(in, 2), out(result, 2), x_tensor(in), out_tensor(result) {}

  // Calls visit(x, out) for the heads of a token.
  template <typename Visit>
  void ForEach(int64_t token, Visit visit) const {
    const int axis = x_tensor->ndim - 2, item = x_tensor->dtype_bits / 8;
    const char* from = x[token];
    char* to = out[token];
    for (int64_t h = 0; h < x_tensor->shape[axis]; ++h) {
      visit(from, to);
      from += x_tensor->strides[axis] * item;
      to += out_tensor->strides[axis] * item;
    }
  }
};

// The work of rope and rope_qk: one tensor, or two.
struct Rope {
  Table table;
  TableRows rows;
  const Heads* heads;
  int count;
};

template <typename Wide>
inline void RotateTokens(const Rope& rope, int64_t begin, int64_t end) {
  const int64_t R = rope.table.R(), D = rope.heads->x_tensor->shape[rope.heads->x_tensor->ndim - 1];
  const AnyopDtype dtype = rope.heads->x.dtype();
  const int64_t item = rope.heads->x_tensor->dtype_bits / 8;
  Angles<Wide> angles;
  for (int64_t token = begin; token < end; ++token) {
    const int64_t row = rope.rows[token], turned = row < 0 ? 0 : R;
    for (int64_t n, first = 0; first < turned / 2; first += n) {
      n = turned / 2 - first < kPairs ? turned / 2 - first : kPairs;
      angles.Read(rope.table, row, first, n);
      for (int t = 0; t < rope.count; ++t) {
        rope.heads[t].ForEach(token, [&](const char* x, char* out) {
          RotateHead<Wide>(dtype, rope.table, first, n, x, out, angles, 1);
        });
      }
    }
    if (turned == D) continue;
    for (int t = 0; t < rope.count; ++t) {
      rope.heads[t].ForEach(token, [&](const char* x, char* out) {
        if (x != out)
          __builtin_memcpy(out + turned * item, x + turned * item,
                           static_cast<size_t>((D - turned) * item));
      });
    }
  }
}

[[maybe_unused]] ANYOP_CPU_CLONES void RunRope(const Rope* rope, int64_t begin, int64_t end) {
  WithFloat(rope->heads->x.dtype(),
            [&](auto wide) { RotateTokens<decltype(wide)>(*rope, begin, end); });
}

}  // namespace anyop::cpu

#endif  // ANYOP_OPS_ROPE_ROTARY_H_
