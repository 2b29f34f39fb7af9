// SPDX-License-Identifier: Apache-2.0
// What CNRT does otherwise than CUDA: the default queue is one of each thread, so that the plugin
// has one of each device in its place; a queue that is destroyed loses its work; a notifier that
// was never placed is no notifier to wait for; directions and codes have other numbers.
#include "cnrt.h"

#include <atomic>
#include <cstdio>
#include <mutex>

#include "cnrt_api.h"
#include "ended_streams.h"
#include "runtime.h"
#include "translated.h"

namespace anyop::cuda_like {
namespace {

Cnrt cnrt;

// Codes of CNRT that the plugin knows by CUDA's numbers; the others are above 100000.
Code Known(Code code) {
  if (code == kCnrtNoMemory) return kOutOfMemory;
  if (code == kCnrtNotReady || code == kCnrtBusy) return kNotReady;
  return code == kCnrtNoDevice ? kNoDevice : code;
}

Code Theirs(Code code) {
  if (code == kOutOfMemory) return kCnrtNoMemory;
  return code == kNoDevice ? kCnrtNoDevice : code;
}

Code GetDeviceCount(int* count) {
  unsigned found = 0;
  const Code code = cnrt.cnrtGetDeviceCount(&found);
  *count = static_cast<int>(found);
  return code || found ? Known(code) : kNoDevice;
}

Code GetDevice(int* device) { return Known(cnrt.cnrtGetDevice(device)); }
Code SetDevice(int device) { return Known(cnrt.cnrtSetDevice(device)); }
Code DeviceSynchronize() { return Known(cnrt.cnrtSyncDevice()); }

Code GetDeviceProperties(void* properties, int) {  // the struct's layout differs between versions
  std::snprintf(static_cast<char*>(properties), 256, "Cambricon MLU");
  return 0;
}

Code DeviceGetAttribute(int* value, int attribute, int device) {
  return Known(cnrt.cnrtDeviceGetAttribute(value, attribute, device));
}

const char* GetErrorName(Code code) {
  if (code == kNotReady) return "cnrtErrorNotReady";
  const char* name = cnrt.cnrtGetErrorName(Theirs(code));
  return name ? name : "no name";
}

const char* GetErrorString(Code code) {
  const char* text = cnrt.cnrtGetErrorStr(Theirs(code));
  return text ? text : "no text";
}

Code GetVersion(int* version) {
  int major = 0, minor = 0, patch = 0;
  cnrt.cnrtGetLibVersion(&major, &minor, &patch);  // older ones return nothing
  *version = major * 1000000 + minor * 1000 + patch;
  return 0;
}

// ---- the default queue of a device ----

struct DefaultQueues {
  std::mutex mutex;
  Handle queues[kMaxDevices] = {};
};

Code CreateWithPriority(Handle* stream, unsigned, int priority) {
  return Known(cnrt.cnrtQueueCreateWithPriority(stream, 0, priority));
}
Code PriorityRange(int* least, int* greatest) {
  return Known(cnrt.cnrtDeviceGetQueuePriorityRange(least, greatest));
}
Code CreateStream(Handle* stream, unsigned flags) {
  int least = 0, greatest = 0;
  if (Code code = PriorityRange(&least, &greatest)) return code;
  return CreateWithPriority(stream, flags, least);
}

// Puts the current device's default queue in the place of nullptr.
Code Place(Handle* stream) {
  static auto* made = new DefaultQueues;
  int device = 0;
  if (*stream) return 0;
  if (Code code = GetDevice(&device)) return code;
  if (device < 0 || device >= kMaxDevices) return kNoDevice;
  const std::lock_guard<std::mutex> lock(made->mutex);
  Handle& queue = made->queues[device];
  if (!queue) {
    if (Code code = CreateStream(&queue, 0)) return code;
  }
  *stream = queue;
  return 0;
}

// A function of CNRT on a queue, which may be the default one.
template <typename Function>
Code OnQueue(Handle stream, const Function& function) {
  if (Code code = Place(&stream)) return code;
  return Known(function(stream));
}

// ---- memory ----

int Direction(int kind) {
  return kind == 1 ? kCnrtToDevice : kind == 2 ? kCnrtToHost : kCnrtOnDevice;
}

Code MemGetInfo(size_t* left, size_t* all) { return Known(cnrt.cnrtMemGetInfo(left, all)); }
Code Malloc(void** memory, size_t bytes) { return Known(cnrt.cnrtMalloc(memory, bytes)); }
Code Free(void* memory) { return memory ? Known(cnrt.cnrtFree(memory)) : 0; }
Code MallocHost(void** memory, size_t bytes) { return Known(cnrt.cnrtHostMalloc(memory, bytes)); }
Code FreeHost(void* memory) { return Known(cnrt.cnrtFreeHost(memory)); }
Code Memcpy(void* to, const void* from, size_t bytes, int kind) {
  return Known(cnrt.cnrtMemcpy(to, const_cast<void*>(from), bytes, Direction(kind)));
}
Code MemcpyAsync(void* to, const void* from, size_t bytes, int kind, Handle stream) {
  return OnQueue(stream, [&](Handle queue) {
    return cnrt.cnrtMemcpyAsync_V2(to, const_cast<void*>(from), bytes, queue, Direction(kind));
  });
}
Code MemsetAsync(void* memory, int value, size_t bytes, Handle stream) {
  return OnQueue(stream,
                 [&](Handle queue) { return cnrt.cnrtMemsetAsync(memory, value, bytes, queue); });
}

// ---- streams ----

Code StreamQuery(Handle stream) { return OnQueue(stream, cnrt.cnrtQueueQuery); }
Code StreamDestroy(Handle stream) {
  static auto* ended = new EndedStreams;
  int device = 0;
  if (Code code = GetDevice(&device)) return code;
  return Known(ended->End(device, stream, StreamQuery, cnrt.cnrtQueueDestroy));
}
Code StreamSynchronize(Handle stream) { return OnQueue(stream, cnrt.cnrtQueueSync); }
Code LaunchHostFunc(Handle stream, void (*function)(void*), void* context) {
  return OnQueue(stream,
                 [&](Handle queue) { return cnrt.cnrtInvokeHostFunc(queue, function, context); });
}

// ---- events ----

struct Event {
  Handle handle = nullptr;
  std::atomic<bool> recorded{false};
};

Event* Of(Handle event) { return static_cast<Event*>(event); }

Code EventCreate(Handle* event, unsigned flags) {
  auto* made = new Event;
  const unsigned kind = flags & kDisableTiming ? kCnrtNoTiming : kCnrtTiming;
  const Code code = cnrt.cnrtNotifierCreateWithFlags(&made->handle, kind);
  if (code) delete made;
  *event = code ? nullptr : made;
  return Known(code);
}
Code EventDestroy(Handle event) {
  const Code code = cnrt.cnrtNotifierDestroy(Of(event)->handle);
  delete Of(event);
  return Known(code);
}
Code EventRecord(Handle event, Handle stream) {
  const Code code = OnQueue(
      stream, [&](Handle queue) { return cnrt.cnrtPlaceNotifier(Of(event)->handle, queue); });
  if (code == 0) Of(event)->recorded = true;
  return code;
}
Code EventQuery(Handle event) {
  return Of(event)->recorded ? Known(cnrt.cnrtQueryNotifier(Of(event)->handle)) : 0;
}
Code EventSynchronize(Handle event) {
  return Of(event)->recorded ? Known(cnrt.cnrtWaitNotifier(Of(event)->handle)) : 0;
}
Code StreamWaitEvent(Handle stream, Handle event, unsigned) {
  if (!Of(event)->recorded) return 0;
  return OnQueue(stream, [&](Handle queue) {
    return cnrt.cnrtQueueWaitNotifier(Of(event)->handle, queue, 0);
  });
}
Code EventElapsedTime(float* milliseconds, Handle begin, Handle end) {
  return Known(cnrt.cnrtNotifierElapsedTime(Of(begin)->handle, Of(end)->handle, milliseconds));
}

void Fill(Api* api) {
#define ANYOP_SET(member, function) api->member = function;
  ANYOP_TRANSLATED(ANYOP_SET)
#undef ANYOP_SET
  api->DeviceGetAttribute = DeviceGetAttribute;
}

}  // namespace

// For kernels (anyop/mlu.h): the queue of the current device that stands for its default stream.
extern "C" __attribute__((visibility("default"))) void* AnyopMluDefaultQueue() {
  Handle queue = nullptr;
  return Place(&queue) ? nullptr : queue;
}

std::string UseCnrt(Library* library) {
#define ANYOP_NAMED(result, name, parameters) {#name, reinterpret_cast<void**>(&cnrt.name)},
  const Named functions[] = {ANYOP_CNRT_FUNCTIONS(ANYOP_NAMED)};
#undef ANYOP_NAMED
  std::string problem = FindAll(*library, "CNRT", functions);
  if (!problem.empty()) return problem;
  Fill(&library->api);
  return "";
}

}  // namespace anyop::cuda_like
