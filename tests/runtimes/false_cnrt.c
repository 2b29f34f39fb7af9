// SPDX-License-Identifier: Apache-2.0
// A false CNRT: Cambricon's names over anyop's device `host`. Directions, flags and priorities are
// CNRT's; a queue with work in it is not destroyed, a notifier that was never placed is none to
// wait for, and the default queue, which would be each thread's own, is refused. It says that it is
// false by its version and in the texts of its errors.
#include "below.h"

enum {
  kNotReady = 1,
  kNoDevice = 100004,
  kInvalid = 100006,
  kMemory = 100100,
  kUnknown = 999991,
  kToDevice = 0,
  kOnDevice = 1,
  kToHost = 2,
};

static __thread int current;

static int Of(int32_t status) {
  if (status == kAnyopOk) return 0;
  return status == kAnyopOutOfMemory ? (int)Word("oom", kMemory) : kInvalid;
}

#define BEGIN(function) \
  if (Fails(#function)) return kUnknown
#define NEED(condition) \
  if (!(condition)) return kInvalid

// ---- devices ----

EXPORT int cnrtGetLibVersion(int* major, int* minor, int* patch) {
  *major = 262, *minor = 233, *patch = 600;  // false_runtime.c's kFalseVersion
  return 0;
}
static int Count(void) {
  int32_t count = 0;
  host->count(&count);
  return (int)Word("devices", count);
}
EXPORT int cnrtGetDeviceCount(unsigned* count) {
  BEGIN(cnrtGetDeviceCount);
  *count = (unsigned)Count();
  return *count ? 0 : kNoDevice;
}
EXPORT int cnrtGetDevice(int* device) {
  BEGIN(cnrtGetDevice);
  *device = current;
  return 0;
}
EXPORT int cnrtSetDevice(int device) {
  BEGIN(cnrtSetDevice);
  NEED(device >= 0 && device < Count());
  current = device;
  return 0;
}
EXPORT int cnrtSyncDevice(void) {
  BEGIN(cnrtSyncDevice);
  return Of(host->synchronize_device(current));
}
EXPORT int cnrtDeviceGetAttribute(int* value, int attribute, int device) {
  BEGIN(cnrtDeviceGetAttribute);
  NEED(device >= 0 && device < Count());
  NEED(attribute == 0x205 || attribute == 1 || attribute == 2);
  *value = attribute == 0x205 ? 12 : attribute == 1 ? 5 : 92;
  return 0;
}
EXPORT const char* cnrtGetErrorName(int code) {
  return code == kMemory     ? "cnrtErrorNoMem"
         : code == kNoDevice ? "cnrtErrorNoDevice"
         : code == kInvalid  ? "cnrtErrorArgsInvalid"
                             : "cnrtErrorUnknown";
}
EXPORT const char* cnrtGetErrorStr(int code) {
  return code == kMemory ? "out of false memory" : "a false error";
}

// ---- memory ----

EXPORT int cnrtMemGetInfo(size_t* left, size_t* all) {
  BEGIN(cnrtMemGetInfo);
  int64_t free_bytes, total_bytes;
  const int code = Of(host->memory_info(current, &free_bytes, &total_bytes));
  *left = (size_t)free_bytes;
  *all = (size_t)total_bytes;
  return code;
}
EXPORT int cnrtMalloc(void** memory, size_t bytes) {
  BEGIN(cnrtMalloc);
  NEED(bytes);
  if (!Fits(bytes)) return Of(kAnyopOutOfMemory);
  return Of(host->allocate(current, (int64_t)bytes, memory));
}
EXPORT int cnrtFree(void* memory) {
  BEGIN(cnrtFree);
  int32_t device = -1;
  const int code = Of(host->device_of(memory, &device));
  return code ? code : Of(host->free(device, memory));
}
EXPORT int cnrtHostMalloc(void** memory, size_t bytes) {
  BEGIN(cnrtHostMalloc);
  return Of(host->allocate_host(current, (int64_t)bytes, memory));
}
EXPORT int cnrtFreeHost(void* memory) {
  BEGIN(cnrtFreeHost);
  return Of(host->free_host(current, memory));
}
static int Kind(int direction) {
  return direction == kToDevice ? 1 : direction == kToHost ? 2 : direction == kOnDevice ? 3 : -1;
}
EXPORT int cnrtMemcpy(void* to, void* from, size_t bytes, int direction) {
  BEGIN(cnrtMemcpy);
  NEED(Kind(direction) > 0);
  return Of(host->copy(current, to, from, (int64_t)bytes, Kind(direction)));
}
EXPORT int cnrtMemcpyAsync_V2(void* to, void* from, size_t bytes, void* queue, int direction) {
  BEGIN(cnrtMemcpyAsync_V2);
  NEED(queue && Kind(direction) > 0);
  return Of(CopyOn(current, queue, to, from, bytes, Kind(direction)));
}
EXPORT int cnrtMemsetAsync(void* memory, int value, size_t bytes, void* queue) {
  BEGIN(cnrtMemsetAsync);
  NEED(queue && value >= 0 && value <= 255);
  return Of(host->set_on(current, queue, memory, value, (int64_t)bytes));
}

// ---- queues ----

EXPORT int cnrtDeviceGetQueuePriorityRange(int* least, int* greatest) {
  BEGIN(cnrtDeviceGetQueuePriorityRange);
  *least = 7;
  *greatest = 0;
  return 0;
}
EXPORT int cnrtQueueCreateWithPriority(void** queue, unsigned flags, int priority) {
  BEGIN(cnrtQueueCreateWithPriority);
  NEED(flags == 0 && priority >= 0 && priority <= 7);
  return Of(host->create_stream(current, queue));
}
static int Query(void* queue) {
  int32_t done = 0;
  const int code = Of(host->query_stream(current, queue, &done));
  return code ? code : done ? 0 : (int)Word("pending", kNotReady);
}
EXPORT int cnrtQueueQuery(void* queue) {
  BEGIN(cnrtQueueQuery);
  NEED(queue);
  return Query(queue);
}
EXPORT int cnrtQueueDestroy(void* queue) {
  BEGIN(cnrtQueueDestroy);
  NEED(queue && Query(queue) == 0);
  return Of(host->destroy_stream(current, queue));
}
EXPORT int cnrtQueueSync(void* queue) {
  BEGIN(cnrtQueueSync);
  NEED(queue);
  return Of(host->synchronize_stream(current, queue));
}
EXPORT int cnrtInvokeHostFunc(void* queue, void (*function)(void*), void* context) {
  BEGIN(cnrtInvokeHostFunc);
  NEED(queue);
  return Of(host->launch_host(current, queue, function, context));
}

// ---- notifiers ----

struct Notifier {
  void* event;
  int timed, placed, device;
};

EXPORT int cnrtNotifierCreateWithFlags(void** notifier, unsigned flags) {
  BEGIN(cnrtNotifierCreateWithFlags);
  NEED(flags == 0 || flags == 4);
  struct Notifier* made = calloc(1, sizeof *made);
  made->timed = flags == 0;
  made->device = current;
  *notifier = made;
  return Of(host->create_event_with(current, flags ? kAnyopEventNoTiming : 0, &made->event));
}
EXPORT int cnrtNotifierDestroy(void* notifier) {
  BEGIN(cnrtNotifierDestroy);
  struct Notifier* ended = notifier;
  const int code = Of(host->destroy_event(ended->device, ended->event));
  free(ended);
  return code;
}
EXPORT int cnrtPlaceNotifier(void* notifier, void* queue) {
  BEGIN(cnrtPlaceNotifier);
  struct Notifier* placed = notifier;
  NEED(queue);
  placed->placed = 1;
  return Of(host->record_event(current, placed->event, queue));
}
EXPORT int cnrtQueryNotifier(void* notifier) {
  BEGIN(cnrtQueryNotifier);
  struct Notifier* asked = notifier;
  int32_t done = 0;
  NEED(asked->placed);
  const int code = Of(host->query_event(asked->device, asked->event, &done));
  return code ? code : done ? 0 : (int)Word("pending", kNotReady);
}
EXPORT int cnrtWaitNotifier(void* notifier) {
  BEGIN(cnrtWaitNotifier);
  struct Notifier* awaited = notifier;
  NEED(awaited->placed);
  return Of(host->synchronize_event(awaited->device, awaited->event));
}
EXPORT int cnrtQueueWaitNotifier(void* notifier, void* queue, unsigned flag) {
  BEGIN(cnrtQueueWaitNotifier);
  struct Notifier* awaited = notifier;
  NEED(queue && flag == 0 && awaited->placed);
  return Of(host->wait_event(current, queue, awaited->event));
}
EXPORT int cnrtNotifierElapsedTime(void* begin, void* end, float* milliseconds) {
  BEGIN(cnrtNotifierElapsedTime);
  struct Notifier *first = begin, *second = end;
  NEED(first->timed && second->timed);
  return Of(host->elapsed_ms(current, first->event, second->event, milliseconds));
}
