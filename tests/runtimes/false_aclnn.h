// SPDX-License-Identifier: Apache-2.0
// Tensors, numbers and executors of the false libopapi, and what checks them.
#ifndef ANYOP_TESTS_RUNTIMES_FALSE_ACLNN_H_
#define ANYOP_TESTS_RUNTIMES_FALSE_ACLNN_H_

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "anyop/anyop.h"

#define EXPORT __attribute__((visibility("default")))

enum { kNull = 161001, kInvalid = 161002, kInner = 561000, kMostDims = 8, kMost = 13 };

// libascendcl.so, false too.
int FalseAclFail(int code, const char* text);
int aclrtLaunchHostFunc(void* stream, void (*function)(void*), void* context);

typedef struct aclTensor {
  AnyopTensor tensor;  // of the CPU, where the device `host` has its memory
  int64_t sizes[kMostDims], strides[kMostDims];
} aclTensor;
typedef struct aclScalar {
  double value;
} aclScalar;
typedef struct aclIntArray {
  uint64_t count;
  int64_t values[kMostDims];
} aclIntArray;

// A call of one of anyop's operators on the CPU, ready to run.
typedef struct aclOpExecutor {
  const char* name;
  const char* op;
  int count;
  AnyopValue values[kMost];
  aclTensor tensors[kMost];
  aclTensor scratch;  // what nobody reads, or no tensor
  uint64_t workspace_bytes;
  void* workspace;
} aclOpExecutor;

static inline int Dtype(const aclTensor* t) { return (int)AnyopDtypeOf(&t->tensor); }

static inline bool IsFloat(const aclTensor* t) {
  const char* broken = getenv("ANYOP_FALSE");  // bfloat16=0: a chip that lacks it
  if (Dtype(t) == kAnyopBFloat16) return !broken || !strstr(broken, "bfloat16=0");
  return Dtype(t) == kAnyopFloat32 || Dtype(t) == kAnyopFloat16;
}

static inline bool SameSizes(const aclTensor* a, const aclTensor* b) {
  return a->tensor.ndim == b->tensor.ndim &&
         memcmp(a->sizes, b->sizes, sizeof(int64_t) * (size_t)a->tensor.ndim) == 0;
}

// The sizes of b from a's dimension `from` on, all 1 behind that.
static inline bool IsReduced(const aclTensor* a, int from, const aclTensor* b) {
  bool same = a->tensor.ndim == b->tensor.ndim;
  for (int d = 0; same && d < a->tensor.ndim; ++d)
    same = b->sizes[d] == (d < from ? a->sizes[d] : 1);
  return same;
}

static inline int64_t Last(const aclTensor* t, int back) {
  return t->tensor.ndim < back ? -1 : t->sizes[t->tensor.ndim - back];
}

#endif  // ANYOP_TESTS_RUNTIMES_FALSE_ACLNN_H_
