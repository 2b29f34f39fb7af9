// SPDX-License-Identifier: Apache-2.0
// The lattice of a transducer's loss: its rows, and the labels of its sequences.
#ifndef ANYOP_OPS_TRANSDUCER_LOSS_LATTICE_H_
#define ANYOP_OPS_TRANSDUCER_LOSS_LATTICE_H_

#include "lattice.h"

namespace anyop {

struct LossLattice : Lattice {
  Integers label;
  int64_t L, V, blank;  // labels of a sequence at most, classes

  // x: (B, T, U, V), or packed (rows, V).
  template <typename Args>
  LossLattice(const Args& args, const AnyopTensor* batch_offset)
      : Lattice{Integers(args.f_len),
                Integers(args.y_len),
                Integers(batch_offset),
                batch_offset != nullptr,
                args.f_len->shape[0],
                batch_offset ? args.x->shape[0] : args.x->shape[1],
                args.label->shape[1] + 1,
                batch_offset ? args.x->shape[0]
                             : args.x->shape[0] * args.x->shape[1] * args.x->shape[2],
                1},
        label(args.label),
        L(args.label->shape[1]),
        V(args.V),
        blank(args.blank_idx) {}

  ANYOP_LATTICE_BOTH bool IsClass(int64_t v) const {
    return static_cast<uint64_t>(v) < static_cast<uint64_t>(V);
  }
  // The class that a move to the next token takes; -1: there is none, or it is no class.
  ANYOP_LATTICE_BOTH int64_t LabelOf(const Node& node, const Sequence& s) const {
    const int64_t v = node.u + 1 < s.tokens ? label[node.b * L + node.u] : -1;
    return IsClass(v) ? v : -1;
  }

  int32_t CheckAll(AnyopCall* call) const {
    if (const int32_t status = Check(call, "y_len")) return status;
    for (int64_t b = 0; b < B; ++b) {
      for (int64_t u = 0; u < g_len[b]; ++u) {
        const int64_t v = label[b * L + u];
        if (IsClass(v)) continue;
        const auto number = [](int64_t n) { return static_cast<long long>(n); };
        char text[128];
        std::snprintf(text, sizeof text, "label[%lld, %lld] is %lld, expected 0 <= label < %lld",
                      number(b), number(u), number(v), number(V));
        return call->fail(call, kAnyopIndexError, text);
      }
    }
    return kAnyopOk;
  }
};

}  // namespace anyop

#endif  // ANYOP_OPS_TRANSDUCER_LOSS_LATTICE_H_
