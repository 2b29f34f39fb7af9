// SPDX-License-Identifier: Apache-2.0
// Events of the host's device.
#pragma once

#include <cstdint>

namespace anyop::host {

int32_t CreateEvent(int32_t device, void** event);
int32_t CreateEventWith(int32_t device, uint32_t flags, void** event);
int32_t DestroyEvent(int32_t device, void* event);
int32_t RecordEvent(int32_t device, void* event, void* stream);
int32_t WaitEvent(int32_t device, void* stream, void* event);
int32_t SynchronizeEvent(int32_t device, void* event);
int32_t QueryEvent(int32_t device, void* event, int32_t* done);
int32_t ElapsedMs(int32_t device, void* begin, void* end, float* milliseconds);

}  // namespace anyop::host
