// SPDX-License-Identifier: Apache-2.0
// Queues are never released: one that was ended may still work, and is taken again when it is idle.
#include "streams.h"

#include <algorithm>

#include "fork.h"
#include "host_calls.h"

namespace anyop::opencl {
namespace {

Code StatusOf(Handle event, int32_t* done) {
  Code status = 0;
  const Code code =
      TheRuntime().cl.GetEventInfo(event, kEventStatus, sizeof status, &status, nullptr);
  *done = status <= 0;  // a negative one: it failed
  return code ? code : std::min(status, 0);
}

// Under the stream's mutex, behind what was put in by now.
Code QueryUnlocked(Stream* stream, int32_t* done) {
  const Api& cl = TheRuntime().cl;
  *done = stream->put == stream->done;
  if (*done) return 0;
  if (!stream->marker || stream->marked != stream->put) {
    if (stream->marker) cl.ReleaseEvent(stream->marker);
    stream->marker = nullptr;
    if (Code code = cl.EnqueueMarkerWithWaitList(stream->queue, 0, nullptr, &stream->marker))
      return code;
    stream->marked = stream->put;
    cl.Flush(stream->queue);
  }
  const Code code = StatusOf(stream->marker, done);
  if (*done) stream->done = stream->marked;
  return code;
}

bool IsIdle(Stream* stream) {
  const std::lock_guard<std::mutex> lock(stream->mutex);
  int32_t done = 0;
  return QueryUnlocked(stream, &done) == 0 && done;
}

// Under the device's mutex.
int32_t NewStream(int32_t index, Device* device, Stream** made) {
  const auto same = std::find_if(device->streams.begin(), device->streams.end(), [](auto& stream) {
    return stream->ended && IsIdle(stream.get());
  });
  if (same != device->streams.end()) {
    (*same)->ended = false;
    *made = same->get();
    return kAnyopOk;
  }
  Code code = 0;
  auto stream = std::make_unique<Stream>();
  stream->device = index;
  Runtime& runtime = TheRuntime();
  stream->queue =
      runtime.cl.CreateCommandQueue(runtime.context, device->id, kQueueProfiling, &code);
  if (int32_t status = Check(code, "making a queue")) return status;
  *made = device->streams.emplace_back(std::move(stream)).get();
  return kAnyopOk;
}

}  // namespace

int32_t FindStream(int32_t index, void* handle, Stream** stream) {
  Device* device;
  if (int32_t status = CheckDevice(index, &device)) return status;
  const std::lock_guard<std::mutex> lock(device->mutex);
  if (!handle) {
    if (!device->plain) {
      if (int32_t status = NewStream(index, device, &device->plain)) return status;
    }
    *stream = device->plain;
    return kAnyopOk;
  }
  for (const auto& known : device->streams) {
    if (known.get() != handle || known->ended || known.get() == device->plain) continue;
    *stream = known.get();
    return kAnyopOk;
  }
  return RefuseOnDevice(kAnyopValueError, "opencl: %p is no stream of device %d", handle, index);
}

int32_t WaitFor(Stream* stream) {
  uint64_t put;
  {
    const std::lock_guard<std::mutex> lock(stream->mutex);
    put = stream->put;
  }
  const Code code = TheRuntime().cl.Finish(stream->queue);
  const std::lock_guard<std::mutex> lock(stream->mutex);
  stream->done = std::max(stream->done, put);
  return Check(code, "waiting for a stream");
}

int32_t SynchronizeDevice(int32_t index) {
  Device* device;
  if (int32_t status = CheckDevice(index, &device)) return status;
  std::vector<Stream*> all;
  {
    const std::lock_guard<std::mutex> lock(device->mutex);
    for (const auto& stream : device->streams) all.push_back(stream.get());
  }
  for (Stream* stream : all) {
    if (int32_t status = WaitFor(stream)) return status;
  }
  return kAnyopOk;
}

void FinishAll() {
  if (Forked()) return;
  for (size_t d = 0; d < TheRuntime().devices.size(); ++d)
    SynchronizeDevice(static_cast<int32_t>(d));
}

int32_t CreateStream(int32_t index, void** made) {
  Device* device;
  Stream* stream = nullptr;
  *made = nullptr;
  if (int32_t status = CheckDevice(index, &device)) return status;
  const std::lock_guard<std::mutex> lock(device->mutex);
  const int32_t status = NewStream(index, device, &stream);
  *made = stream;
  return status;
}

int32_t CreateStreamWith(int32_t device, int32_t, void** made) {
  return CreateStream(device, made);
}

int32_t DestroyStream(int32_t index, void* handle) {
  if (!handle || Forked()) return kAnyopOk;
  Stream* stream;
  if (int32_t status = FindStream(index, handle, &stream)) return status;
  Device* device;
  if (int32_t status = CheckDevice(index, &device)) return status;
  const std::lock_guard<std::mutex> lock(device->mutex);
  stream->ended = true;
  return kAnyopOk;
}

int32_t SynchronizeStream(int32_t device, void* handle) {
  Stream* stream;
  if (int32_t status = FindStream(device, handle, &stream)) return status;
  return WaitFor(stream);
}

int32_t QueryStream(int32_t device, void* handle, int32_t* done) {
  Stream* stream;
  if (int32_t status = FindStream(device, handle, &stream)) return status;
  const std::lock_guard<std::mutex> lock(stream->mutex);
  return Check(QueryUnlocked(stream, done), "asking whether a stream is done");
}

// A marker's callback starts the function on a thread of its own; a user event holds what is
// behind.
int32_t LaunchHost(int32_t device, void* handle, void (*function)(void*), void* context) {
  if (!function) return RefuseOnDevice(kAnyopValueError, "opencl: launch_host without a function");
  Stream* stream;
  if (int32_t status = FindStream(device, handle, &stream)) return status;
  const Runtime& runtime = TheRuntime();
  Code code = 0;
  Handle held = runtime.cl.CreateUserEvent(runtime.context, &code);
  if (int32_t status = Check(code, "making a user event")) return status;
  code = Put(stream, [&](Handle queue) {
    Handle before = nullptr;
    Code failed = runtime.cl.EnqueueMarkerWithWaitList(queue, 0, nullptr, &before);
    if (failed) return failed;
    failed = runtime.cl.EnqueueBarrierWithWaitList(queue, 1, &held, nullptr);
    if (!failed) failed = CallBehind(before, function, context, held);
    if (failed) runtime.cl.SetUserEventStatus(held, 0);
    runtime.cl.ReleaseEvent(before);
    return failed;
  });
  if (code) runtime.cl.ReleaseEvent(held);
  return Check(code, "putting a host function into a stream");
}

// ---- events ----

namespace {

struct Event {
  std::mutex mutex;
  Handle last = nullptr;
};

// One more reference; nullptr: nothing was recorded.
Handle Last(void* handle) {
  auto* event = static_cast<Event*>(handle);
  const std::lock_guard<std::mutex> lock(event->mutex);
  if (event->last) TheRuntime().cl.RetainEvent(event->last);
  return event->last;
}

int32_t CheckEvent(int32_t device, void* event) {
  if (int32_t status = CheckDevice(device)) return status;
  return event ? int32_t{kAnyopOk} : RefuseOnDevice(kAnyopValueError, "opencl: the event is NULL");
}

// Runs body with what was recorded last, where something was.
template <typename Body>
int32_t WithLast(int32_t device, void* event, const char* doing, const Body& body) {
  if (int32_t status = CheckEvent(device, event)) return status;
  Handle last = Last(event);
  if (!last) return kAnyopOk;
  const Code code = body(last);
  TheRuntime().cl.ReleaseEvent(last);
  return Check(code, doing);
}

int32_t EndOf(int32_t device, void* event, uint64_t* end) {
  *end = 0;
  const auto ask = [&](Handle last) {
    return TheRuntime().cl.GetEventProfilingInfo(last, kProfilingEnd, sizeof *end, end, nullptr);
  };
  if (int32_t status = WithLast(device, event, "asking an event for its time", ask)) return status;
  if (*end) return kAnyopOk;
  return RefuseOnDevice(kAnyopDeviceError, "opencl: an event was not recorded");
}

}  // namespace

int32_t CreateEventWith(int32_t device, uint32_t, void** event) {
  *event = nullptr;
  if (int32_t status = CheckDevice(device)) return status;
  *event = new Event;
  return kAnyopOk;
}

int32_t CreateEvent(int32_t device, void** event) { return CreateEventWith(device, 0, event); }

int32_t DestroyEvent(int32_t, void* handle) {
  auto* event = static_cast<Event*>(handle);
  if (!event || Forked()) return kAnyopOk;
  if (event->last) TheRuntime().cl.ReleaseEvent(event->last);
  delete event;
  return kAnyopOk;
}

int32_t RecordEvent(int32_t device, void* handle, void* stream_handle) {
  Stream* stream;
  if (int32_t status = CheckEvent(device, handle)) return status;
  if (int32_t status = FindStream(device, stream_handle, &stream)) return status;
  Handle made = nullptr;
  const Api& cl = TheRuntime().cl;
  const Code code = Put(
      stream, [&](Handle queue) { return cl.EnqueueMarkerWithWaitList(queue, 0, nullptr, &made); });
  if (int32_t status = Check(code, "recording an event")) return status;
  auto* event = static_cast<Event*>(handle);
  const std::lock_guard<std::mutex> lock(event->mutex);
  if (event->last) cl.ReleaseEvent(event->last);
  event->last = made;
  return kAnyopOk;
}

int32_t WaitEvent(int32_t device, void* stream_handle, void* event) {
  Stream* stream;
  if (int32_t status = FindStream(device, stream_handle, &stream)) return status;
  return WithLast(device, event, "waiting for an event in a stream", [&](Handle last) {
    return Put(stream, [&](Handle queue) {
      return TheRuntime().cl.EnqueueBarrierWithWaitList(queue, 1, &last, nullptr);
    });
  });
}

int32_t SynchronizeEvent(int32_t device, void* event) {
  return WithLast(device, event, "waiting for an event",
                  [](Handle last) { return TheRuntime().cl.WaitForEvents(1, &last); });
}

int32_t QueryEvent(int32_t device, void* event, int32_t* done) {
  *done = 1;
  return WithLast(device, event, "asking whether an event is done",
                  [&](Handle last) { return StatusOf(last, done); });
}

int32_t ElapsedMs(int32_t device, void* begin, void* end, float* milliseconds) {
  uint64_t first, second;
  if (int32_t status = EndOf(device, begin, &first)) return status;
  if (int32_t status = EndOf(device, end, &second)) return status;
  *milliseconds =
      static_cast<float>(static_cast<double>(static_cast<int64_t>(second - first)) * 1e-6);
  return kAnyopOk;
}

}  // namespace anyop::opencl
