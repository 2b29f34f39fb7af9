// SPDX-License-Identifier: Apache-2.0
// One call of the runtime's for each function, but for what not all of them have: priorities, and
// functions of the host without a callback's arguments.
#include "streams.h"

#include <algorithm>
#include <memory>

#include "fork.h"
#include "stream_memory.h"

namespace anyop::cuda_like {
namespace {

// Of something that may not be ready yet, which is no error.
Code Ready(Code code, int32_t* done) {
  *done = code == 0;
  if (code != kNotReady) return code;
  if (TheApi().GetLastError) TheApi().GetLastError();
  return 0;
}

// Whether a handle is an object of the runtime's, not a number for a stream that each device has.
bool IsMade(const void* handle) { return reinterpret_cast<uintptr_t>(handle) > 2; }

// `where` is the stream, or the event, that the runtime takes the device from, if it can.
template <typename Body>
int32_t OnEvent(int32_t device, const void* event, const void* where, const char* doing,
                const Body& body) {
  if (int32_t status = CheckDevice(device)) return status;
  if (!event)
    return RefuseOnDevice(kAnyopValueError, "%s: the event is NULL", TheRuntime().name.c_str());
  if (TheRuntime().handles_know_device && IsMade(where)) return Check(body(), doing);
  return On(device, doing, body);
}

struct HostCall {
  void (*function)(void*);
  void* context;
};

void RunHostCall(Handle, Code, void* context) {
  const std::unique_ptr<HostCall> call(static_cast<HostCall*>(context));
  call->function(call->context);
}

}  // namespace

int32_t PriorityRange(int32_t device, int32_t* least, int32_t* greatest) {
  *least = *greatest = 0;
  const Api& api = TheApi();
  if (!api.StreamCreateWithPriority || !api.DeviceGetStreamPriorityRange) return kAnyopOk;
  return On(device, "asking for priorities of streams",
            [&] { return api.DeviceGetStreamPriorityRange(least, greatest); });
}

int32_t CreateStream(int32_t device, void** stream) {
  *stream = nullptr;
  return On(device, "making a stream",
            [&] { return TheApi().StreamCreateWithFlags(stream, kNonBlocking); });
}

int32_t CreateStreamWith(int32_t device, int32_t priority, void** stream) {
  int32_t least, greatest;
  *stream = nullptr;
  if (int32_t status = CheckDevice(device)) return status;
  if (int32_t status = PriorityRange(device, &least, &greatest)) return status;
  if (least == greatest) return CreateStream(device, stream);
  const int32_t nearest = std::clamp(priority, greatest, least);
  return On(device, "making a stream",
            [&] { return TheApi().StreamCreateWithPriority(stream, kNonBlocking, nearest); });
}

int32_t DestroyStream(int32_t device, void* stream) {
  if (!stream || Forked()) return kAnyopOk;
  return On(device, "ending a stream", [&] {
    const Code code = Orphan(device, stream);
    return code ? code : TheApi().StreamDestroy(stream);
  });
}

int32_t SynchronizeStream(int32_t device, void* stream) {
  return On(device, "waiting for a stream", [&] { return TheApi().StreamSynchronize(stream); });
}

int32_t SynchronizeDevice(int32_t device) {
  return On(device, "waiting for the device", [] { return TheApi().DeviceSynchronize(); });
}

int32_t QueryStream(int32_t device, void* stream, int32_t* done) {
  *done = 0;
  return On(device, "asking a stream", [&] { return Ready(TheApi().StreamQuery(stream), done); });
}

int32_t LaunchHost(int32_t device, void* stream, void (*function)(void*), void* context) {
  if (int32_t status = CheckDevice(device)) return status;
  if (!function)
    return RefuseOnDevice(kAnyopValueError, "%s: launch_host without a function",
                          TheRuntime().name.c_str());
  return On(device, "putting a function into a stream", [&] {
    const Api& api = TheApi();
    if (api.LaunchHostFunc) return api.LaunchHostFunc(stream, function, context);
    auto call = std::make_unique<HostCall>(HostCall{function, context});
    const Code code = api.StreamAddCallback(stream, RunHostCall, call.get(), 0);
    if (code == 0) static_cast<void>(call.release());  // RunHostCall's now
    return code;
  });
}

int32_t CreateEventWith(int32_t device, uint32_t flags, void** event) {
  *event = nullptr;
  const unsigned kind = flags & kAnyopEventNoTiming ? kDisableTiming : 0;
  return On(device, "making an event", [&] { return TheApi().EventCreateWithFlags(event, kind); });
}

int32_t CreateEvent(int32_t device, void** event) { return CreateEventWith(device, 0, event); }

int32_t DestroyEvent(int32_t device, void* event) {
  if (!event || Forked()) return kAnyopOk;
  return On(device, "ending an event", [&] { return TheApi().EventDestroy(event); });
}

int32_t RecordEvent(int32_t device, void* event, void* stream) {
  return OnEvent(device, event, stream, "recording an event",
                 [&] { return TheApi().EventRecord(event, stream); });
}

int32_t WaitEvent(int32_t device, void* stream, void* event) {
  return OnEvent(device, event, stream, "letting a stream wait",
                 [&] { return TheApi().StreamWaitEvent(stream, event, 0); });
}

int32_t SynchronizeEvent(int32_t device, void* event) {
  return OnEvent(device, event, event, "waiting for an event",
                 [&] { return TheApi().EventSynchronize(event); });
}

int32_t QueryEvent(int32_t device, void* event, int32_t* done) {
  *done = 0;
  return OnEvent(device, event, event, "asking an event",
                 [&] { return Ready(TheApi().EventQuery(event), done); });
}

int32_t ElapsedMs(int32_t device, void* begin, void* end, float* milliseconds) {
  return OnEvent(device, begin && end ? begin : nullptr, begin, "reading the time between events",
                 [&] { return TheApi().EventElapsedTime(milliseconds, begin, end); });
}

}  // namespace anyop::cuda_like
