// SPDX-License-Identifier: Apache-2.0
// The instructions of AVX-512 by which dots.cc and panels.cc multiply.
#pragma once

#if defined(__x86_64__) && (!defined(ANYOP_CPU_ISA) || ANYOP_CPU_ISA >= 4)
#define ANYOP_DOTS_TARGET __attribute__((target("avx512f,avx512bw,avx512bf16")))

namespace anyop {

typedef float Sums __attribute__((vector_size(64)));
typedef float StoredSums __attribute__((vector_size(64), aligned(4), may_alias));
typedef short Terms __attribute__((vector_size(64)));
typedef short StoredTerms __attribute__((vector_size(64), aligned(2), may_alias));

// Adds the products of a pair of terms to each of 16 sums. By its name, for its intrinsic's types
// differ between compilers; by value: so arrays of sums stay in registers.
ANYOP_DOTS_TARGET inline Sums AddProducts(Sums sums, Terms x, Terms y) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sums) : "v"(x), "v"(y));
  return sums;
}

ANYOP_DOTS_TARGET inline Sums AddProducts(Sums sums, Sums x, Sums y) {
  asm("vfmadd231ps %2, %1, %0" : "+v"(sums) : "v"(x), "v"(y));
  return sums;
}

}  // namespace anyop
#endif
