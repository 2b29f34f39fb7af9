// SPDX-License-Identifier: Apache-2.0
// Memory of CUDA devices: plain, and in the order of a stream.
#pragma once

#include <cstdint>

namespace anyop::cuda {

int32_t Allocate(int32_t device, int64_t bytes, void** memory);
int32_t Free(int32_t device, void* memory);
int32_t AllocateOn(int32_t device, void* stream, int64_t bytes, void** memory);
int32_t FreeOn(int32_t device, void* stream, void* memory);
int32_t Copy(int32_t device, void* to, const void* from, int64_t bytes, int32_t kind);
int32_t CopyOn(int32_t device, void* stream, void* to, const void* from, int64_t bytes,
               int32_t kind);

}  // namespace anyop::cuda
