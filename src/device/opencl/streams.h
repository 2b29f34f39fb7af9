// SPDX-License-Identifier: Apache-2.0
// Streams are in-order queues, events the last marker that was recorded.
#pragma once

#include "runtime.h"

namespace anyop::opencl {

struct Stream {
  int32_t device = 0;
  Handle queue = nullptr;
  bool ended = false;  // under its device's mutex; its queue is taken again when it is idle
  std::mutex mutex;    // of what follows, and so that a count is that of what is in the queue
  uint64_t put = 0, done = 0;
  Handle marker = nullptr;  // behind `marked` entries; made by a query
  uint64_t marked = 0;
};

// NULL is the default stream.
int32_t FindStream(int32_t device, void* handle, Stream** stream);

// Runs enqueue(queue), which returns a code, as the stream's next entry.
template <typename Enqueue>
Code Put(Stream* stream, const Enqueue& enqueue) {
  const std::lock_guard<std::mutex> lock(stream->mutex);
  const Code code = enqueue(stream->queue);
  if (code) return code;
  ++stream->put;
  return TheRuntime().cl.Flush(stream->queue);
}

int32_t WaitFor(Stream* stream);
void FinishAll();

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

}  // namespace anyop::opencl
