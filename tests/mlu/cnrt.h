// SPDX-License-Identifier: Apache-2.0
// A false cnrt.h for tests/builder/mlu_compile_test.py: what scale.mlu names of CNRT's, over the
// false CNRT of tests/runtimes.
#pragma once

typedef int cnrtRet_t;
typedef struct cnrtQueueStruct* cnrtQueue_t;
typedef struct {
  unsigned x, y, z;
} cnrtDim3_t;
typedef enum { cnrtFuncTypeBlock = 1 } cnrtFunctionType_t;

extern "C" cnrtRet_t cnrtInvokeHostFunc(cnrtQueue_t queue, void (*function)(void*), void* context);
extern "C" const char* cnrtGetErrorStr(cnrtRet_t code);

inline thread_local cnrtRet_t false_last_error = 0;

inline cnrtRet_t cnrtGetLastError() {
  const cnrtRet_t code = false_last_error;
  false_last_error = 0;
  return code;
}
