// SPDX-License-Identifier: Apache-2.0
// Random words of a row's elements on the CPU.
#ifndef ANYOP_OPS_TRANSDUCER_JOINT_ROWS_H_
#define ANYOP_OPS_TRANSDUCER_JOINT_ROWS_H_

#include "joint_numbers.h"

namespace anyop::cpu {

// Of elements [at, at + size), at a multiple of 4; words have room for 3 more.
inline void DrawWords(const JointNumbers& numbers, int64_t padded_row, int64_t at, int64_t size,
                      uint32_t* words) {
  for (int64_t i = 0; i < size; i += 4) {
    const PhiloxWords four = numbers.Words(padded_row, at + i);
    __builtin_memcpy(words + i, &four, sizeof four);
  }
}

}  // namespace anyop::cpu

#endif  // ANYOP_OPS_TRANSDUCER_JOINT_ROWS_H_
