// SPDX-License-Identifier: Apache-2.0
// Memory of the runtime's devices. Whose an address is, is our own table's to say: the structs of
// vendors that would tell differ.
#pragma once

#include "runtime.h"

namespace anyop::cuda_like {

int32_t Allocate(int32_t device, int64_t bytes, void** memory);
int32_t Free(int32_t device, void* memory);
int32_t AllocateOn(int32_t device, void* stream, int64_t bytes, void** memory);
int32_t FreeOn(int32_t device, void* stream, void* memory);
int32_t AllocateHost(int32_t device, int64_t bytes, void** memory);
int32_t FreeHost(int32_t device, void* memory);
int32_t IsHost(const void* memory, int32_t* yes);
int32_t DeviceOf(const void* memory, int32_t* device);
int32_t MemoryInfo(int32_t device, int64_t* free_bytes, int64_t* total_bytes);

int32_t Copy(int32_t device, void* to, const void* from, int64_t bytes, int32_t kind);
int32_t CopyOn(int32_t device, void* stream, void* to, const void* from, int64_t bytes,
               int32_t kind);
int32_t CopyBetweenOn(int32_t device, void* stream, void* to, int32_t to_device, const void* from,
                      int32_t from_device, int64_t bytes);
int32_t SetOn(int32_t device, void* stream, void* memory, int32_t value, int64_t bytes);

}  // namespace anyop::cuda_like
