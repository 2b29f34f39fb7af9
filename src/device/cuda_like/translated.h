// SPDX-License-Identifier: Apache-2.0
// For runtimes of another shape than CUDA's, each translated in one file of this folder.
#pragma once

#include <dlfcn.h>

#include <string>

#include "library.h"

namespace anyop::cuda_like {

struct Named {
  const char* name;
  void** function;
};

// Finds all functions; else what the library lacks. `shape` is whose functions they are.
template <int kCount>
inline std::string FindAll(const Library& library, const char* shape,
                           const Named (&functions)[kCount]) {
  std::string lacking;
  bool found = false;
  for (const Named& named : functions) {
    *named.function = dlsym(library.handle, named.name);
    if (*named.function)
      found = true;
    else
      lacking += (lacking.empty() ? "" : ", ") + std::string(named.name);
  }
  if (!found) return library.path + " is another vendor's library: it has no function of " + shape;
  return lacking.empty() ? "" : library.path + " lacks " + lacking;
}

// F(a function of the Api, what stands for it).
#define ANYOP_TRANSLATED(F)                       \
  F(GetDeviceCount, GetDeviceCount)               \
  F(GetDevice, GetDevice)                         \
  F(SetDevice, SetDevice)                         \
  F(DeviceSynchronize, DeviceSynchronize)         \
  F(GetDeviceProperties, GetDeviceProperties)     \
  F(RuntimeGetVersion, GetVersion)                \
  F(GetErrorName, GetErrorName)                   \
  F(GetErrorString, GetErrorString)               \
  F(MemGetInfo, MemGetInfo)                       \
  F(Malloc, Malloc)                               \
  F(Free, Free)                                   \
  F(MallocHost, MallocHost)                       \
  F(FreeHost, FreeHost)                           \
  F(Memcpy, Memcpy)                               \
  F(MemcpyAsync, MemcpyAsync)                     \
  F(MemsetAsync, MemsetAsync)                     \
  F(StreamCreateWithFlags, CreateStream)          \
  F(StreamCreateWithPriority, CreateWithPriority) \
  F(DeviceGetStreamPriorityRange, PriorityRange)  \
  F(StreamDestroy, StreamDestroy)                 \
  F(StreamSynchronize, StreamSynchronize)         \
  F(StreamQuery, StreamQuery)                     \
  F(StreamWaitEvent, StreamWaitEvent)             \
  F(LaunchHostFunc, LaunchHostFunc)               \
  F(EventCreateWithFlags, EventCreate)            \
  F(EventDestroy, EventDestroy)                   \
  F(EventRecord, EventRecord)                     \
  F(EventQuery, EventQuery)                       \
  F(EventSynchronize, EventSynchronize)           \
  F(EventElapsedTime, EventElapsedTime)

}  // namespace anyop::cuda_like
