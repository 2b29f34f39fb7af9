// SPDX-License-Identifier: Apache-2.0
// The functions of Cambricon's CNRT that are called, with their whole names, and its numbers; from
// public copies of cnrt.h.
#pragma once

#include <cstddef>

#include "runtime_api.h"

namespace anyop::cuda_like {

constexpr Code kCnrtNotReady = 1, kCnrtNoDevice = 100004, kCnrtNoMemory = 100100;
constexpr Code kCnrtBusy = 632014;  // what older ones say in place of "not ready"
constexpr int kCnrtToDevice = 0, kCnrtOnDevice = 1, kCnrtToHost = 2;
constexpr unsigned kCnrtNoTiming = 4, kCnrtTiming = 0;

#define ANYOP_CNRT_FUNCTIONS(F)                                    \
  F(Code, cnrtGetLibVersion, (int*, int*, int*))                   \
  F(Code, cnrtGetDeviceCount, (unsigned*))                         \
  F(Code, cnrtGetDevice, (int*))                                   \
  F(Code, cnrtSetDevice, (int))                                    \
  F(Code, cnrtSyncDevice, ())                                      \
  F(Code, cnrtDeviceGetAttribute, (int*, int, int))                \
  F(const char*, cnrtGetErrorName, (Code))                         \
  F(const char*, cnrtGetErrorStr, (Code))                          \
  F(Code, cnrtMemGetInfo, (size_t*, size_t*))                      \
  F(Code, cnrtMalloc, (void**, size_t))                            \
  F(Code, cnrtFree, (void*))                                       \
  F(Code, cnrtHostMalloc, (void**, size_t))                        \
  F(Code, cnrtFreeHost, (void*))                                   \
  F(Code, cnrtMemcpy, (void*, void*, size_t, int))                 \
  F(Code, cnrtMemcpyAsync_V2, (void*, void*, size_t, Handle, int)) \
  F(Code, cnrtMemsetAsync, (void*, int, size_t, Handle))           \
  F(Code, cnrtDeviceGetQueuePriorityRange, (int*, int*))           \
  F(Code, cnrtQueueCreateWithPriority, (Handle*, unsigned, int))   \
  F(Code, cnrtQueueDestroy, (Handle))                              \
  F(Code, cnrtQueueSync, (Handle))                                 \
  F(Code, cnrtQueueQuery, (Handle))                                \
  F(Code, cnrtQueueWaitNotifier, (Handle, Handle, unsigned))       \
  F(Code, cnrtInvokeHostFunc, (Handle, void (*)(void*), void*))    \
  F(Code, cnrtNotifierCreateWithFlags, (Handle*, unsigned))        \
  F(Code, cnrtNotifierDestroy, (Handle))                           \
  F(Code, cnrtPlaceNotifier, (Handle, Handle))                     \
  F(Code, cnrtQueryNotifier, (Handle))                             \
  F(Code, cnrtWaitNotifier, (Handle))                              \
  F(Code, cnrtNotifierElapsedTime, (Handle, Handle, float*))

// NOLINTBEGIN(bugprone-macro-parentheses): parameters of a type
#define ANYOP_MEMBER(result, name, parameters) result(*name) parameters = nullptr;
struct Cnrt {
  ANYOP_CNRT_FUNCTIONS(ANYOP_MEMBER)
};
#undef ANYOP_MEMBER
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace anyop::cuda_like
