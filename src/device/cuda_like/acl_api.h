// SPDX-License-Identifier: Apache-2.0
// The functions of Ascend's ACL that are called, with their whole names, and its numbers.
// tests/runtimes/runtimes_acl_test.py compares them with the vendor's headers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime_api.h"

namespace anyop::cuda_like {

constexpr Code kAclInitialized = 100002, kAclOutOfMemory = 207001, kAclNoDevice = 207004;
constexpr int kAclHugeFirst = 0, kAclHbm = 1, kAclStreamComplete = 0, kAclEventComplete = 1;
constexpr uint32_t kAclEventSync = 1, kAclEventTimed = 8;

#define ANYOP_ACL_FUNCTIONS(F)                                                 \
  F(Code, aclInit, (const char*))                                              \
  F(const char*, aclGetRecentErrMsg, ())                                       \
  F(const char*, aclrtGetSocName, ())                                          \
  F(Code, aclrtGetVersion, (int32_t*, int32_t*, int32_t*))                     \
  F(Code, aclrtGetDeviceCount, (uint32_t*))                                    \
  F(Code, aclrtSetDevice, (int32_t))                                           \
  F(Code, aclrtGetDevice, (int32_t*))                                          \
  F(Code, aclrtSynchronizeDevice, ())                                          \
  F(Code, aclrtGetMemInfo, (int, size_t*, size_t*))                            \
  F(Code, aclrtMalloc, (void**, size_t, int))                                  \
  F(Code, aclrtFree, (void*))                                                  \
  F(Code, aclrtMallocHost, (void**, size_t))                                   \
  F(Code, aclrtFreeHost, (void*))                                              \
  F(Code, aclrtMemcpy, (void*, size_t, const void*, size_t, int))              \
  F(Code, aclrtMemcpyAsync, (void*, size_t, const void*, size_t, int, Handle)) \
  F(Code, aclrtMemsetAsync, (void*, size_t, int32_t, size_t, Handle))          \
  F(Code, aclrtDeviceGetStreamPriorityRange, (int32_t*, int32_t*))             \
  F(Code, aclrtCreateStreamWithConfig, (Handle*, uint32_t, uint32_t))          \
  F(Code, aclrtDestroyStream, (Handle))                                        \
  F(Code, aclrtSynchronizeStream, (Handle))                                    \
  F(Code, aclrtStreamQuery, (Handle, int*))                                    \
  F(Code, aclrtStreamWaitEvent, (Handle, Handle))                              \
  F(Code, aclrtLaunchHostFunc, (Handle, void (*)(void*), void*))               \
  F(Code, aclrtCreateEventExWithFlag, (Handle*, uint32_t))                     \
  F(Code, aclrtDestroyEvent, (Handle))                                         \
  F(Code, aclrtRecordEvent, (Handle, Handle))                                  \
  F(Code, aclrtQueryEventStatus, (Handle, int*))                               \
  F(Code, aclrtSynchronizeEvent, (Handle))                                     \
  F(Code, aclrtEventElapsedTime, (float*, Handle, Handle))

// NOLINTBEGIN(bugprone-macro-parentheses): parameters of a type
#define ANYOP_MEMBER(result, name, parameters) result(*name) parameters = nullptr;
struct Acl {
  ANYOP_ACL_FUNCTIONS(ANYOP_MEMBER)
};
#undef ANYOP_MEMBER
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace anyop::cuda_like
