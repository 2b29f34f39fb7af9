// SPDX-License-Identifier: Apache-2.0
// The part of cuBLASLt's C interface that products need, by declarations of our own: the library is
// looked up at run time, and no header of it is needed to build. Values are those of 12.9 to 13.1.
#pragma once

#include "anyop/kernel.h"

namespace anyop::cublaslt {

constexpr size_t kMinimumVersion = 120900;  // 12.9: major * 10000 + minor * 100 + patch

using Handle = struct HandleTag*;
constexpr int kOk = 0;

// Descriptors lie in memory of ours; the library checks that it is large enough.
struct Desc {
  uint64_t words[64];
};
struct Layout {
  uint64_t words[16];
};
struct Preference {
  uint64_t words[16];
};
struct Algorithm {
  uint64_t words[8];
};
struct Heuristic {
  Algorithm algorithm;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};

enum Type : int { kFloat32 = 0, kFloat64 = 1, kFloat16 = 2, kBFloat16 = 14, kE4M3 = 28 };
enum Compute : int { kInFloat32 = 68, kInFloat64 = 70, kInTF32 = 77 };
enum DescAttribute : int {
  kTransposeA = 3,
  kTransposeB = 4,
  kEpilogue = 7,
  kBiasPointer = 8,
  kAuxPointer = 11,
  kAuxStride = 12,  // between columns
  kScalePointerA = 17,
  kScalePointerB = 18,
  kFastSums = 25,  // of 8 bits: in the precision of the tensor cores
  kScaleModeA = 31,
  kScaleModeB = 32,
};
enum LayoutAttribute : int { kBatch = 5, kBatchStride = 6 };
enum PreferenceAttribute : int {
  kMostWorkspace = 1,
  kReductions = 3,
  kAlignmentA = 5,
  kAlignmentB = 6,
  kAlignmentC = 7,
  kAlignmentD = 8,
};
constexpr uint32_t kReduceInFloat32 = 2;  // partial sums of split-K; in 16 bits they would be wrong

// X(name without cublasLt, result, arguments).
#define ANYOP_CUBLASLT_FUNCTIONS(X)                                                           \
  X(GetVersion, size_t, ())                                                                   \
  X(GetStatusString, const char*, (int status))                                               \
  X(Create, int, (Handle*))                                                                   \
  X(MatmulDescInit_internal, int, (Desc*, size_t bytes, int compute, int scale))              \
  X(MatmulDescSetAttribute, int, (Desc*, int attribute, const void* value, size_t bytes))     \
  X(MatrixLayoutInit_internal, int,                                                           \
    (Layout*, size_t bytes, int type, uint64_t rows, uint64_t columns, int64_t stride))       \
  X(MatrixLayoutSetAttribute, int, (Layout*, int attribute, const void* value, size_t bytes)) \
  X(MatmulPreferenceInit_internal, int, (Preference*, size_t bytes))                          \
  X(MatmulPreferenceSetAttribute, int,                                                        \
    (Preference*, int attribute, const void* value, size_t bytes))                            \
  X(MatmulAlgoGetHeuristic, int,                                                              \
    (Handle, const Desc*, const Layout* a, const Layout* b, const Layout* c, const Layout* d, \
     const Preference*, int most, Heuristic* found, int* count))                              \
  X(Matmul, int,                                                                              \
    (Handle, const Desc*, const void* alpha, const void* a, const Layout*, const void* b,     \
     const Layout*, const void* beta, const void* c, const Layout*, void* d, const Layout*,   \
     const Algorithm*, void* workspace, size_t workspace_bytes, void* stream))

struct Library {
#define ANYOP_X(name, result, arguments) \
  result(*name) arguments = nullptr; /* NOLINT(bugprone-macro-parentheses): a declaration */
  ANYOP_CUBLASLT_FUNCTIONS(ANYOP_X)
#undef ANYOP_X
};

// The library of the process, opened at the first call. kAnyopDeclined, with where it was looked
// for, where there is none that serves; ValueError where ANYOP_CUBLASLT names none.
int32_t GetLibrary(AnyopCall* call, const Library** library);

}  // namespace anyop::cublaslt
