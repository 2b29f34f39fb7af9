// SPDX-License-Identifier: Apache-2.0
// A false ACL: Ascend's names over anyop's device `host`, as strict as the vendor's documents say.
// A thread that set no device has none; a stream with work in it is not ended; an event that was
// never recorded is no event to wait for; flags, priorities and room are checked. It says that it
// is false by its version and its chip's name.
#include "below.h"

enum {
  kInvalid = 100000,
  kInitialized = 100002,
  kContextNull = 107002,
  kMemory = 207001,
  kNoDevice = 207004,
  kUnknown = 507899,
  kMajor = 262,  // 262233600, as the others
  kMinor = 233,
  kPatch = 600,
};

static __thread int current = -1;
static __thread const char* last;
static int started;

static int Fail(int code, const char* text) {
  last = text;
  return code;
}

EXPORT int FalseAclFail(int code, const char* text) { return Fail(code, text); }  // false_aclnn.c's

static int Of(int32_t status) {
  if (status == kAnyopOk) return 0;
  if (status == kAnyopOutOfMemory) return Fail((int)Word("oom", kMemory), "out of false memory");
  return Fail(kInvalid, "a false error");
}

#define BEGIN(function) \
  if (Fails(#function)) return Fail(kUnknown, "a false error")
#define ON_DEVICE(function) \
  BEGIN(function);          \
  if (current < 0) return Fail(kContextNull, "no context")

// ---- the process and its devices ----

EXPORT int aclInit(const char* path) {
  BEGIN(aclInit);
  if (path) return Fail(kInvalid, "a path");
  if (started++) return Fail(kInitialized, "twice");
  return 0;
}
EXPORT const char* aclGetRecentErrMsg(void) {
  const char* text = last;
  last = NULL;
  return text;
}
EXPORT const char* aclrtGetSocName(void) { return "false Ascend over host"; }
EXPORT int aclrtGetVersion(int32_t* major, int32_t* minor, int32_t* patch) {
  BEGIN(aclrtGetVersion);
  *major = kMajor;
  *minor = kMinor;
  *patch = kPatch;
  return 0;
}
static int Count(void) {
  int32_t count = 0;
  host->count(&count);
  return (int)Word("devices", count);
}
EXPORT int aclrtGetDeviceCount(uint32_t* count) {
  BEGIN(aclrtGetDeviceCount);
  if (!Count()) return Fail(kNoDevice, "no false device");
  *count = (uint32_t)Count();
  return 0;
}
EXPORT int aclrtSetDevice(int32_t device) {
  BEGIN(aclrtSetDevice);
  if (device < 0 || device >= Count()) return Fail(kInvalid, "no such device");
  current = device;
  return 0;
}
EXPORT int aclrtGetDevice(int32_t* device) {
  ON_DEVICE(aclrtGetDevice);
  *device = current;
  return 0;
}
EXPORT int aclrtSynchronizeDevice(void) {
  ON_DEVICE(aclrtSynchronizeDevice);
  return Of(host->synchronize_device(current));
}

// ---- memory ----

EXPORT int aclrtGetMemInfo(int kind, size_t* left, size_t* all) {
  ON_DEVICE(aclrtGetMemInfo);
  int64_t free_bytes, total_bytes;
  const int code = Of(host->memory_info(current, &free_bytes, &total_bytes));
  *left = (size_t)free_bytes;
  *all = (size_t)total_bytes;
  return kind == 1 ? code : Fail(kInvalid, "a kind of memory");
}
EXPORT int aclrtMalloc(void** memory, size_t bytes, int policy) {
  ON_DEVICE(aclrtMalloc);
  if (policy || !bytes) return Fail(kInvalid, "a policy");
  if (!Fits(bytes)) return Of(kAnyopOutOfMemory);
  return Of(host->allocate(current, (int64_t)bytes, memory));
}
EXPORT int aclrtFree(void* memory) {
  ON_DEVICE(aclrtFree);
  int32_t device = -1;
  const int code = Of(host->device_of(memory, &device));
  return code ? code : Of(host->free(device, memory));
}
EXPORT int aclrtMallocHost(void** memory, size_t bytes) {
  ON_DEVICE(aclrtMallocHost);
  return Of(host->allocate_host(current, (int64_t)bytes, memory));
}
EXPORT int aclrtFreeHost(void* memory) {
  ON_DEVICE(aclrtFreeHost);
  return Of(host->free_host(current, memory));
}
EXPORT int aclrtMemcpy(void* to, size_t room, const void* from, size_t bytes, int kind) {
  ON_DEVICE(aclrtMemcpy);
  if (room < bytes) return Fail(kInvalid, "too little room");
  return Of(host->copy(current, to, from, (int64_t)bytes, kind));
}
EXPORT int aclrtMemcpyAsync(void* to, size_t room, const void* from, size_t bytes, int kind,
                            void* stream) {
  ON_DEVICE(aclrtMemcpyAsync);
  if (room < bytes) return Fail(kInvalid, "too little room");
  return Of(CopyOn(current, stream, to, from, bytes, kind));
}
EXPORT int aclrtMemsetAsync(void* memory, size_t room, int32_t value, size_t bytes, void* stream) {
  ON_DEVICE(aclrtMemsetAsync);
  if (room < bytes || value < 0 || value > 255) return Fail(kInvalid, "too little room");
  return Of(host->set_on(current, stream, memory, value, (int64_t)bytes));
}

// ---- streams ----

EXPORT int aclrtDeviceGetStreamPriorityRange(int32_t* least, int32_t* greatest) {
  ON_DEVICE(aclrtDeviceGetStreamPriorityRange);
  *least = 7;
  *greatest = 0;
  return 0;
}
EXPORT int aclrtCreateStreamWithConfig(void** stream, uint32_t priority, uint32_t flag) {
  ON_DEVICE(aclrtCreateStreamWithConfig);
  if (priority > 7 || flag > 3) return Fail(kInvalid, "a priority");
  return Of(host->create_stream(current, stream));
}
EXPORT int aclrtStreamQuery(void* stream, int* status) {
  ON_DEVICE(aclrtStreamQuery);
  int32_t done = 0;
  const int code = Of(host->query_stream(current, stream, &done));
  *status = Word("states", 0) ? done : !done;  // states=1: those of events
  return code;
}
EXPORT int aclrtDestroyStream(void* stream) {
  ON_DEVICE(aclrtDestroyStream);
  int32_t done = 0;
  host->query_stream(current, stream, &done);
  if (!done) return Fail(kInvalid, "a stream was ended with work in it");
  return Of(host->destroy_stream(current, stream));
}
EXPORT int aclrtSynchronizeStream(void* stream) {
  ON_DEVICE(aclrtSynchronizeStream);
  return Of(host->synchronize_stream(current, stream));
}
EXPORT int aclrtLaunchHostFunc(void* stream, void (*function)(void*), void* context) {
  ON_DEVICE(aclrtLaunchHostFunc);
  return Of(host->launch_host(current, stream, function, context));
}

// ---- events ----

struct Event {
  void* event;
  int timed, recorded, device;
};

EXPORT int aclrtCreateEventExWithFlag(void** event, uint32_t flag) {
  ON_DEVICE(aclrtCreateEventExWithFlag);
  if (flag != 1 && flag != 9) return Fail(kInvalid, "a flag");
  struct Event* made = calloc(1, sizeof *made);
  made->timed = flag == 9;
  made->device = current;
  *event = made;
  return Of(host->create_event_with(current, flag == 9 ? 0 : kAnyopEventNoTiming, &made->event));
}
EXPORT int aclrtDestroyEvent(void* event) {
  ON_DEVICE(aclrtDestroyEvent);
  struct Event* ended = event;
  const int code = Of(host->destroy_event(ended->device, ended->event));
  free(ended);
  return code;
}
EXPORT int aclrtRecordEvent(void* event, void* stream) {
  ON_DEVICE(aclrtRecordEvent);
  struct Event* recorded = event;
  recorded->recorded = 1;
  return Of(host->record_event(current, recorded->event, stream));
}
EXPORT int aclrtQueryEventStatus(void* event, int* status) {
  ON_DEVICE(aclrtQueryEventStatus);
  struct Event* asked = event;
  int32_t done = 0;
  const int code = Of(host->query_event(asked->device, asked->event, &done));
  *status = asked->recorded && done;
  return code;
}
EXPORT int aclrtSynchronizeEvent(void* event) {
  ON_DEVICE(aclrtSynchronizeEvent);
  struct Event* awaited = event;
  if (!awaited->recorded) return Fail(kInvalid, "an event that was never recorded");
  return Of(host->synchronize_event(awaited->device, awaited->event));
}
EXPORT int aclrtStreamWaitEvent(void* stream, void* event) {
  ON_DEVICE(aclrtStreamWaitEvent);
  struct Event* awaited = event;
  if (!awaited->recorded) return Fail(kInvalid, "an event that was never recorded");
  return Of(host->wait_event(current, stream, awaited->event));
}
EXPORT int aclrtEventElapsedTime(float* milliseconds, void* begin, void* end) {
  ON_DEVICE(aclrtEventElapsedTime);
  struct Event *first = begin, *second = end;
  if (!first->timed || !second->timed) return Fail(kInvalid, "an event without time");
  return Of(host->elapsed_ms(current, first->event, second->event, milliseconds));
}
