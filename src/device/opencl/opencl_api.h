// SPDX-License-Identifier: Apache-2.0
// What is used of OpenCL 1.2, declared anew: no header and no library of a vendor's is needed to
// build this. libOpenCL is opened at run time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace anyop::opencl {

using Code = int32_t;  // cl_int
using Handle = void*;  // cl_platform_id, cl_device_id, cl_context, cl_mem, ...
using Bits = uint64_t;
using Done = void (*)(Handle event, Code status, void* context);

// X(result, name, parameters), of all functions.
#define ANYOP_OPENCL_FUNCTIONS(X)                                                                 \
  X(Code, GetPlatformIDs, (uint32_t, Handle*, uint32_t*))                                         \
  X(Code, GetPlatformInfo, (Handle, uint32_t, size_t, void*, size_t*))                            \
  X(Code, GetDeviceIDs, (Handle, Bits, uint32_t, Handle*, uint32_t*))                             \
  X(Code, GetDeviceInfo, (Handle, uint32_t, size_t, void*, size_t*))                              \
  X(Handle, CreateContext,                                                                        \
    (const intptr_t*, uint32_t, const Handle*, void (*)(const char*, const void*, size_t, void*), \
     void*, Code*))                                                                               \
  X(Handle, CreateCommandQueue, (Handle, Handle, Bits, Code*))                                    \
  X(Handle, CreateBuffer, (Handle, Bits, size_t, void*, Code*))                                   \
  X(Code, ReleaseMemObject, (Handle))                                                             \
  X(Handle, CreateProgramWithSource, (Handle, uint32_t, const char**, const size_t*, Code*))      \
  X(Handle, CreateProgramWithBinary,                                                              \
    (Handle, uint32_t, const Handle*, const size_t*, const unsigned char**, Code*, Code*))        \
  X(Code, BuildProgram,                                                                           \
    (Handle, uint32_t, const Handle*, const char*, void (*)(Handle, void*), void*))               \
  X(Code, ReleaseProgram, (Handle))                                                               \
  X(Code, GetProgramInfo, (Handle, uint32_t, size_t, void*, size_t*))                             \
  X(Code, GetProgramBuildInfo, (Handle, Handle, uint32_t, size_t, void*, size_t*))                \
  X(Handle, CreateKernel, (Handle, const char*, Code*))                                           \
  X(Code, GetKernelInfo, (Handle, uint32_t, size_t, void*, size_t*))                              \
  X(Code, GetKernelWorkGroupInfo, (Handle, Handle, uint32_t, size_t, void*, size_t*))             \
  X(Code, SetKernelArg, (Handle, uint32_t, size_t, const void*))                                  \
  X(Code, EnqueueNDRangeKernel,                                                                   \
    (Handle, Handle, uint32_t, const size_t*, const size_t*, const size_t*, uint32_t,             \
     const Handle*, Handle*))                                                                     \
  X(Code, EnqueueReadBuffer,                                                                      \
    (Handle, Handle, uint32_t, size_t, size_t, void*, uint32_t, const Handle*, Handle*))          \
  X(Code, EnqueueWriteBuffer,                                                                     \
    (Handle, Handle, uint32_t, size_t, size_t, const void*, uint32_t, const Handle*, Handle*))    \
  X(Code, EnqueueCopyBuffer,                                                                      \
    (Handle, Handle, Handle, size_t, size_t, size_t, uint32_t, const Handle*, Handle*))           \
  X(Code, EnqueueFillBuffer,                                                                      \
    (Handle, Handle, const void*, size_t, size_t, size_t, uint32_t, const Handle*, Handle*))      \
  X(Handle, EnqueueMapBuffer,                                                                     \
    (Handle, Handle, uint32_t, Bits, size_t, size_t, uint32_t, const Handle*, Handle*, Code*))    \
  X(Code, EnqueueUnmapMemObject, (Handle, Handle, void*, uint32_t, const Handle*, Handle*))       \
  X(Code, EnqueueMarkerWithWaitList, (Handle, uint32_t, const Handle*, Handle*))                  \
  X(Code, EnqueueBarrierWithWaitList, (Handle, uint32_t, const Handle*, Handle*))                 \
  X(Handle, CreateUserEvent, (Handle, Code*))                                                     \
  X(Code, SetUserEventStatus, (Handle, Code))                                                     \
  X(Code, SetEventCallback, (Handle, Code, Done, void*))                                          \
  X(Code, WaitForEvents, (uint32_t, const Handle*))                                               \
  X(Code, GetEventInfo, (Handle, uint32_t, size_t, void*, size_t*))                               \
  X(Code, GetEventProfilingInfo, (Handle, uint32_t, size_t, void*, size_t*))                      \
  X(Code, RetainEvent, (Handle))                                                                  \
  X(Code, ReleaseEvent, (Handle))                                                                 \
  X(Code, Flush, (Handle))                                                                        \
  X(Code, Finish, (Handle))

struct Api {
// NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration
#define ANYOP_FIELD(result, name, parameters) result(*name) parameters;
  ANYOP_OPENCL_FUNCTIONS(ANYOP_FIELD)
#undef ANYOP_FIELD
};

// The values that are used of each enumeration.
enum : Code {
  kMemAllocationFailure = -4,
  kOutOfResources = -5,
  kOutOfHostMemory = -6,
  kBuildFailure = -11,
  kInvalidKernelName = -46,
  kInvalidBufferSize = -61,
  kNoPlatform = -1001,
};
enum : uint32_t {
  kPlatformVersion = 0x0901,
  kPlatformName = 0x0902,
  kDeviceUnits = 0x1002,
  kDeviceMaxAllocation = 0x1010,
  kDeviceGlobalBytes = 0x101F,
  kDeviceLocalBytes = 0x1023,
  kDeviceName = 0x102B,
  kDriverVersion = 0x102D,
  kDeviceVersion = 0x102F,
  kDeviceDoubleConfig = 0x1032,
  kDeviceNvidiaMajor = 0x4000,  // cl_nv_device_attribute_query
  kProgramBinarySizes = 0x1165,
  kProgramBinaries = 0x1166,
  kProgramKernelNames = 0x1168,
  kBuildLog = 0x1183,
  kKernelNumArguments = 0x1191,
  kKernelGroupSize = 0x11B0,
  kKernelLocalBytes = 0x11B2,
  kEventStatus = 0x11D3,
  kProfilingEnd = 0x1283,
};
enum : Bits {
  kTypeGpu = 4,
  kTypeAll = 0xFFFFFFFF,
  kQueueProfiling = 2,
  kReadWrite = 1,
  kAllocateHost = 16,
  kMapReadWrite = 3,
};

}  // namespace anyop::opencl
