// SPDX-License-Identifier: Apache-2.0
// What the joint of a transducer keeps of a sum: ReLU, and dropout by the place of an element.
#ifndef ANYOP_OPS_TRANSDUCER_JOINT_NUMBERS_H_
#define ANYOP_OPS_TRANSDUCER_JOINT_NUMBERS_H_

#include <cmath>

#include "anyop/philox.h"
#include "lattice.h"

namespace anyop {

inline Lattice LatticeOf(const AnyopTensor* f, const AnyopTensor* g, const AnyopTensor* f_len,
                         const AnyopTensor* g_len, const AnyopTensor* batch_offset,
                         const AnyopTensor* of_rows) {
  const int64_t B = f->shape[0], T = f->shape[1], U = g->shape[1];
  const int64_t rows = batch_offset ? of_rows->shape[0] : B * T * U;
  return {Integers(f_len),
          Integers(g_len),
          Integers(batch_offset),
          batch_offset != nullptr,
          B,
          T,
          U,
          rows,
          0};
}

struct JointNumbers {
  const int64_t *seed, *offset;  // of one element; NULL: nothing is dropped
  uint64_t dropped;              // words below it: dropout * 2^32
  double scale;                  // of what is kept
  bool relu;

  template <typename Args>
  explicit JointNumbers(const Args& args)
      : seed(args.seed ? static_cast<const int64_t*>(args.seed->data) : nullptr),
        offset(args.offset ? static_cast<const int64_t*>(args.offset->data) : nullptr),
        dropped(static_cast<uint64_t>(std::llround(args.dropout * 4294967296.0))),
        scale(args.dropout > 0 && args.dropout < 1 ? 1 / (1 - args.dropout) : 1),
        relu(args.relu != 0) {
    if (!(args.dropout > 0)) seed = nullptr;
  }

  // The words of elements h to h + 3 of a row, h a multiple of 4.
  // The row is the high half of the counter, so that calls may lie close in the stream.
  ANYOP_PHILOX_FUNCTION PhiloxWords Words(int64_t padded_row, int64_t h) const {
    return Philox(static_cast<uint64_t>(*seed), static_cast<uint64_t>(padded_row),
                  static_cast<uint64_t>(*offset + h / 4));
  }
  // NaN is kept.
  template <typename W>
  ANYOP_PHILOX_FUNCTION bool Keeps(W sum, uint32_t word) const {
    return !(relu && sum <= 0) && (!seed || word >= dropped);
  }
  bool KeepsAll() const { return !relu && !seed; }
};

template <typename Args>
int32_t CheckJoint(AnyopCall* call, const Args& args) {
  char text[96] = "";
  if (args.dropout > 0 && !(args.seed && args.offset))
    std::snprintf(text, sizeof text, "dropout is %g, which needs seed and offset", args.dropout);
  if (!(args.dropout >= 0 && args.dropout <= 1))
    std::snprintf(text, sizeof text, "dropout is %g, expected a number from 0 to 1", args.dropout);
  return text[0] ? call->fail(call, kAnyopValueError, text) : kAnyopOk;
}

}  // namespace anyop

#endif  // ANYOP_OPS_TRANSDUCER_JOINT_NUMBERS_H_
