// SPDX-License-Identifier: Apache-2.0
// The functions of a runtime shaped like CUDA's, without the vendor's prefix, and the numbers that
// they share. tests/runtimes/prototypes.cc compares them with CUDA's and HIP's headers.
#pragma once

#include <cstddef>

namespace anyop::cuda_like {

using Code = int;
using Handle = void*;  // a stream, an event, a module, a kernel

constexpr Code kOutOfMemory = 2, kNoDevice = 100, kNoBinary = 209, kNotFound = 500, kNotReady = 600,
               kNotSupported = 801;
constexpr unsigned kNonBlocking = 1, kDisableTiming = 2, kPortable = 1;

// (result, name, parameters, whether a row may say that it can be missing)
#define ANYOP_RUNTIME_FUNCTIONS(F)                                                           \
  F(Code, GetDeviceCount, (int*), false)                                                     \
  F(Code, GetDevice, (int*), false)                                                          \
  F(Code, SetDevice, (int), false)                                                           \
  F(Code, DeviceSynchronize, (), false)                                                      \
  F(Code, GetDeviceProperties, (void*, int), false)                                          \
  F(Code, DeviceGetAttribute, (int*, int, int), true)                                        \
  F(Code, DriverGetVersion, (int*), true)                                                    \
  F(Code, RuntimeGetVersion, (int*), true)                                                   \
  F(const char*, GetErrorName, (Code), false)                                                \
  F(const char*, GetErrorString, (Code), false)                                              \
  F(Code, GetLastError, (), true)                                                            \
  F(Code, MemGetInfo, (size_t*, size_t*), false)                                             \
  F(Code, Malloc, (void**, size_t), false)                                                   \
  F(Code, Free, (void*), false)                                                              \
  F(Code, MallocAsync, (void**, size_t, Handle), true)                                       \
  F(Code, FreeAsync, (void*, Handle), true)                                                  \
  F(Code, HostAlloc, (void**, size_t, unsigned), true)                                       \
  F(Code, MallocHost, (void**, size_t), true)                                                \
  F(Code, FreeHost, (void*), false)                                                          \
  F(Code, Memcpy, (void*, const void*, size_t, int), false)                                  \
  F(Code, MemcpyAsync, (void*, const void*, size_t, int, Handle), false)                     \
  F(Code, MemcpyPeerAsync, (void*, int, const void*, int, size_t, Handle), true)             \
  F(Code, MemsetAsync, (void*, int, size_t, Handle), false)                                  \
  F(Code, StreamCreateWithFlags, (Handle*, unsigned), false)                                 \
  F(Code, StreamCreateWithPriority, (Handle*, unsigned, int), true)                          \
  F(Code, DeviceGetStreamPriorityRange, (int*, int*), true)                                  \
  F(Code, StreamDestroy, (Handle), false)                                                    \
  F(Code, StreamSynchronize, (Handle), false)                                                \
  F(Code, StreamQuery, (Handle), false)                                                      \
  F(Code, StreamWaitEvent, (Handle, Handle, unsigned), false)                                \
  F(Code, LaunchHostFunc, (Handle, void (*)(void*), void*), true)                            \
  F(Code, StreamAddCallback, (Handle, void (*)(Handle, Code, void*), void*, unsigned), true) \
  F(Code, EventCreateWithFlags, (Handle*, unsigned), false)                                  \
  F(Code, EventDestroy, (Handle), false)                                                     \
  F(Code, EventRecord, (Handle, Handle), false)                                              \
  F(Code, EventQuery, (Handle), false)                                                       \
  F(Code, EventSynchronize, (Handle), false)                                                 \
  F(Code, EventElapsedTime, (float*, Handle, Handle), false)

// Of images: in the runtime itself, or in the library that the row's module_libraries names.
#define ANYOP_MODULE_FUNCTIONS(F)                                                                  \
  F(Code, ModuleLoadData, (Handle*, const void*), true)                                            \
  F(Code, ModuleGetFunction, (Handle*, Handle, const char*), true)                                 \
  F(Code, ModuleLaunchKernel,                                                                      \
    (Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void**, \
     void**),                                                                                      \
    true)

// NOLINTBEGIN(bugprone-macro-parentheses): parameters of a type
#define ANYOP_MEMBER(result, name, parameters, optional) result(*name) parameters = nullptr;
struct Api {
  ANYOP_RUNTIME_FUNCTIONS(ANYOP_MEMBER)
};
struct ModuleApi {
  ANYOP_MODULE_FUNCTIONS(ANYOP_MEMBER)
};
#undef ANYOP_MEMBER
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace anyop::cuda_like
