/* SPDX-License-Identifier: Apache-2.0 */
/* Cached memory of any AnyopDevice: blocks that are given back are kept for the stream they came
   from. C ABI, no other header.

   Functions that return int32_t return an AnyopStatus with AnyopLastError's text. All may be called
   from any thread, but not from a function that launch_host runs, except AnyopDeviceFree,
   AnyopHostFree and the two that record. In a process forked after use, memory is refused and
   giving back does nothing.

   ANYOP_DEVICE_MEMORY_LIMIT, bytes, read when a device's memory is first asked for, is the most
   that each device's cache takes from it. */
#ifndef ANYOP_DEVICE_MEMORY_H_
#define ANYOP_DEVICE_MEMORY_H_

#include "anyop/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes and numbers now, their peaks since AnyopDeviceResetPeak, and sums since the start. A block
   counts with the size it was rounded up to, a multiple of 512 bytes. */
typedef struct AnyopMemoryStats {
  uint32_t size; /* set by the caller; fields beyond it are not written */
  uint32_t reserved;
  int64_t allocated_bytes, allocated_bytes_peak; /* given out */
  int64_t active_bytes, active_bytes_peak;       /* and given back, but in use by other streams */
  int64_t reserved_bytes, reserved_bytes_peak;   /* taken from the device */
  int64_t blocks, blocks_peak;                   /* given out */
  int64_t segments, segments_peak;               /* taken from the device */
  int64_t allocations, frees;                    /* of blocks, in all */
  int64_t segment_allocations, segment_frees;    /* of segments, in all */
  int64_t retries;                               /* after giving back what was cached */
  int64_t out_of_memory;                         /* refused in spite of that */
  int64_t limit_bytes;                           /* 0: none */
} AnyopMemoryStats;
ANYOP_STATIC_ASSERT(offsetof(AnyopMemoryStats, limit_bytes) == 136);
ANYOP_STATIC_ASSERT(sizeof(AnyopMemoryStats) == 144);

/* Memory of a device, 512-byte aligned, usable by work that stream is given from now on. 0 bytes
   give NULL. Where the device has no more, what is cached goes back to it first, which waits for
   it; kAnyopOutOfMemory if that is not enough. */
ANYOP_DEVICE_API int32_t AnyopDeviceMalloc(const AnyopDevice* device, int32_t index, void* stream,
                                           int64_t bytes, void** memory);

/* Its stream may be given it again at once, for later work; never waits. Work of other streams must
   be done, or recorded. NULL is ignored; what is no block, or no longer one, is a kAnyopValueError.
 */
ANYOP_DEVICE_API int32_t AnyopDeviceFree(const AnyopDevice* device, int32_t index, void* memory);

/* Another stream of the same device works on the block: after AnyopDeviceFree nobody is given it
   before what that stream holds by then is done. */
ANYOP_DEVICE_API int32_t AnyopDeviceRecordStream(const AnyopDevice* device, int32_t index,
                                                 void* memory, void* stream);

/* Size of a block that is given out, rounded up; 0 when it is none. */
ANYOP_DEVICE_API int64_t AnyopDeviceBlockBytes(const AnyopDevice* device, int32_t index,
                                               const void* memory);

/* Gives back to the device all segments of which nothing is in use. Waits for the device. */
ANYOP_DEVICE_API int32_t AnyopDeviceEmptyCache(const AnyopDevice* device, int32_t index);
ANYOP_DEVICE_API int32_t AnyopDeviceMemoryStats(const AnyopDevice* device, int32_t index,
                                                AnyopMemoryStats* stats);
ANYOP_DEVICE_API int32_t AnyopDeviceResetPeak(const AnyopDevice* device, int32_t index);
/* The most the cache takes from now on; 0: no limit. What it has, it keeps. */
ANYOP_DEVICE_API int32_t AnyopDeviceSetMemoryLimit(const AnyopDevice* device, int32_t index,
                                                   int64_t bytes);

/* The same for pinned memory of the host, one cache for all devices of a platform. index: the
   device that is asked when more is needed. A block is given out again when the streams recorded
   for it, each with its device, are done with what they held when it was given back. */
ANYOP_DEVICE_API int32_t AnyopHostMalloc(const AnyopDevice* device, int32_t index, int64_t bytes,
                                         void** memory);
ANYOP_DEVICE_API int32_t AnyopHostFree(const AnyopDevice* device, void* memory);
ANYOP_DEVICE_API int32_t AnyopHostRecordStream(const AnyopDevice* device, void* memory,
                                               int32_t index, void* stream);
ANYOP_DEVICE_API int32_t AnyopHostEmptyCache(const AnyopDevice* device);
ANYOP_DEVICE_API int32_t AnyopHostMemoryStats(const AnyopDevice* device, AnyopMemoryStats* stats);
ANYOP_DEVICE_API int32_t AnyopHostResetPeak(const AnyopDevice* device);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ANYOP_DEVICE_MEMORY_H_ */
