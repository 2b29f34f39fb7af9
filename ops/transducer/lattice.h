// SPDX-License-Identifier: Apache-2.0
// Which rows of a transducer's lattice are those of a sequence, padded or packed; on the CPU and on
// CUDA.
#ifndef ANYOP_OPS_TRANSDUCER_LATTICE_H_
#define ANYOP_OPS_TRANSDUCER_LATTICE_H_

#include <cstdio>

#include "anyop/kernel.h"

#if defined(__CUDACC__) || defined(__HIPCC__)
#define ANYOP_LATTICE_BOTH __host__ __device__
#else
#define ANYOP_LATTICE_BOTH
#endif

namespace anyop {

// A tensor of int32 or int64, without gaps.
struct Integers {
  const void* data;
  bool narrow;

  explicit Integers(const AnyopTensor* tensor)
      : data(tensor ? tensor->data : nullptr), narrow(tensor && tensor->dtype_bits == 32) {}
  ANYOP_LATTICE_BOTH int64_t operator[](int64_t i) const {
    return narrow ? static_cast<const int32_t*>(data)[i] : static_cast<const int64_t*>(data)[i];
  }
};

// Row (t, u) of sequence b is first + t * stride + u. Of a padded lattice all sequences have T
// frames of U rows; of a packed one they lie one behind the other, each with its own sizes.
struct Lattice {
  Integers f_len, g_len, ends;  // ends: where the sequences of a packed one end
  bool packed;
  int64_t B, T, U, rows;
  int64_t more;  // a sequence has g_len + more tokens

  struct Sequence {
    int64_t frames, tokens, first, stride;
    bool good;  // lengths and place are possible
  };
  struct Node {
    int64_t b, t, u;
    bool inside;  // else nothing is known of it
  };

  ANYOP_LATTICE_BOTH Sequence operator[](int64_t b) const {
    const int64_t frames = f_len[b], tokens = g_len[b] + more;
    const bool fits = frames >= 0 && frames <= T && tokens >= more && tokens <= U;
    if (!packed) return {frames, tokens, b * T * U, U, fits};
    const int64_t first = b > 0 ? ends[b - 1] : 0, end = ends[b];
    const bool inside = first >= 0 && first <= end && end <= rows;
    return {frames, tokens, first, tokens, fits && inside && end - first == frames * tokens};
  }

  ANYOP_LATTICE_BOTH Node Find(int64_t row) const {
    int64_t b = row / (packed ? 1 : T * U);
    if (packed) {  // the first sequence that ends behind the row
      int64_t above = B;
      for (b = 0; b < above;) {
        const int64_t middle = (b + above) / 2;
        if (ends[middle] > row) {
          above = middle;
        } else {
          b = middle + 1;
        }
      }
      if (b == B) return {0, 0, 0, false};
    }
    const Sequence s = (*this)[b];
    if (!s.good || row < s.first) return {b, 0, 0, false};
    const int64_t t = (row - s.first) / s.stride, u = (row - s.first) % s.stride;
    return {b, t, u, t < s.frames && u < s.tokens};
  }

  // Of a row in the padded lattice, whether this one is or not.
  ANYOP_LATTICE_BOTH int64_t PaddedRow(const Node& node) const {
    return (node.b * T + node.t) * U + node.u;
  }

  // kAnyopOk, or the noted error of the first sequence that is not good. name: of g_len.
  int32_t Check(AnyopCall* call, const char* name) const {
    for (int64_t b = 0; b < B; ++b) {
      if ((*this)[b].good) continue;
      char text[200];
      const auto number = [](int64_t v) { return static_cast<long long>(v); };
      if (f_len[b] < 0 || f_len[b] > T) {
        std::snprintf(text, sizeof text, "f_len[%lld] is %lld, expected 0 <= f_len <= %lld",
                      number(b), number(f_len[b]), number(T));
      } else if (g_len[b] < 0 || g_len[b] > U - more) {
        std::snprintf(text, sizeof text, "%s[%lld] is %lld, expected 0 <= %s <= %lld", name,
                      number(b), number(g_len[b]), name, number(U - more));
      } else {
        std::snprintf(text, sizeof text,
                      "batch_offset[%lld] is %lld, expected the sum of f_len * %s up to it, at "
                      "most %lld, the rows",
                      number(b), number(ends[b]), more ? "(y_len + 1)" : name, number(rows));
      }
      return call->fail(call, kAnyopValueError, text);
    }
    return kAnyopOk;
  }
};

}  // namespace anyop

#endif  // ANYOP_OPS_TRANSDUCER_LATTICE_H_
