// SPDX-License-Identifier: Apache-2.0
// Products of few rows of bfloat16 and float32: dot products, which read every weight once.
#pragma once

#include "gemm.h"

namespace anyop {

// Whether this CPU has the instruction, and this build may use it.
inline bool HasBF16Dots() {
#if defined(__x86_64__) && (!defined(ANYOP_CPU_ISA) || ANYOP_CPU_ISA >= 4)
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw");
#else
  return false;
#endif
}

// Whether it has AMX for bfloat16: a product of more than a few rows is then oneDNN's.
bool HasBF16Tiles();

// Whether the product was computed: one of float32 (with AVX-512) or bfloat16 (with AVX512-BF16),
// without batches, of at most 16 rows of a (4 of bfloat16 where the CPU has AMX) by rows of the
// transpose of b. The bits of a result do not depend on the
// number of threads.
bool Dots(AnyopCall* call, const GemmProblem& problem);

}  // namespace anyop
