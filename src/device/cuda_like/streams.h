// SPDX-License-Identifier: Apache-2.0
// Streams and events, which are the runtime's own handles.
#pragma once

#include "runtime.h"

namespace anyop::cuda_like {

int32_t PriorityRange(int32_t device, int32_t* least, int32_t* greatest);

int32_t CreateStream(int32_t device, void** stream);
int32_t CreateStreamWith(int32_t device, int32_t priority, void** stream);
int32_t DestroyStream(int32_t device, void* stream);
int32_t SynchronizeStream(int32_t device, void* stream);
int32_t SynchronizeDevice(int32_t device);
int32_t QueryStream(int32_t device, void* stream, int32_t* done);
int32_t LaunchHost(int32_t device, void* stream, void (*function)(void*), void* context);

int32_t CreateEvent(int32_t device, void** event);
int32_t CreateEventWith(int32_t device, uint32_t flags, void** event);
int32_t DestroyEvent(int32_t device, void* event);
int32_t RecordEvent(int32_t device, void* event, void* stream);
int32_t WaitEvent(int32_t device, void* stream, void* event);
int32_t SynchronizeEvent(int32_t device, void* event);
int32_t QueryEvent(int32_t device, void* event, int32_t* done);
int32_t ElapsedMs(int32_t device, void* begin, void* end, float* milliseconds);

}  // namespace anyop::cuda_like
