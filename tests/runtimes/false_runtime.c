// SPDX-License-Identifier: Apache-2.0
// A false runtime: a vendor's names over anyop's device `host`, so that everything but the vendor's
// own semantics can be tested. false_runtimes.py writes the names, NAME_Malloc and the like, from a
// row of src/device/cuda_like/runtimes.toml.
//
// It is less kind than a vendor's may be: plain memory of the host is read and written when the
// stream comes to it, an unknown flag is refused, and an error that nobody took away fails the next
// record of an event. ANYOP_FALSE breaks it: what each word does stands at its use.
#include "below.h"

#define NAME(function) NAME_##function
#define TEXT_OF(text) #text
#define TEXT(text) TEXT_OF(text)

enum {
  kInvalid = 1,
  kMemory = 2,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kNoBinary = 209,
  kNotFound = 500,
  kNotReady = 600,
  kNotSupported = 801,
  kUnknown = 999,
  kFalseVersion = 0x0FA15E00,
};

static __thread int current, last;

static int Note(int code) {
  if (code) last = code;
  return code;
}

static int Of(int32_t status) {
  if (status == kAnyopOk) return 0;
  return Note(status == kAnyopOutOfMemory ? (int)Word("oom", kMemory) : kInvalid);
}

// The device that a stream or an event was made on, which CUDA's know themselves; the current one
// for what stands for its own streams.
typedef int32_t Asking(int32_t device, void* handle, int32_t* done);
static int MadeOn(Asking* ask, void* handle) {
  int32_t count = 0, done;
  if ((uintptr_t)handle <= 2) return current;
  host->count(&count);
  for (int32_t device = 0; device < count; ++device)
    if (ask(device, handle, &done) == kAnyopOk) return device;
  return current;
}
static int OfStream(void* stream) { return MadeOn(host->query_stream, stream); }
static int OfEvent(void* event) { return MadeOn(host->query_event, event); }

#define BEGIN(function) \
  if (Fails(#function)) return Note(kUnknown)

// ---- devices and errors ----

static int Count(void) {
  int32_t count = 0;
  host->count(&count);
  return (int)Word("devices", count);  // devices=0: there is none
}

EXPORT int NAME(GetDeviceCount)(int* count) {
  BEGIN(GetDeviceCount);
  *count = Count();
  return *count ? 0 : Note((int)Word("nodevice", kNoDevice));
}
EXPORT int NAME(GetDevice)(int* device) {
  BEGIN(GetDevice);
  *device = current;
  return 0;
}
EXPORT int NAME(SetDevice)(int device) {
  BEGIN(SetDevice);
  if (device < 0 || device >= Count()) return Note(kInvalidDevice);
  current = device;
  return 0;
}
EXPORT int NAME(DeviceSynchronize)(void) {
  BEGIN(DeviceSynchronize);
  return Of(host->synchronize_device(current));
}
EXPORT int NAME(GetDeviceProperties)(void* properties, int device) {
  BEGIN(GetDeviceProperties);
  memset(properties, 0xA5, 2048);  // no vendor's struct
  snprintf(properties, 256, "false %s %d over host", TEXT(VENDOR), device);
  return device < 0 || device >= Count() ? Note(kInvalidDevice) : 0;
}
EXPORT int NAME(DeviceGetAttribute)(int* value, int attribute, int device) {
  BEGIN(DeviceGetAttribute);
  if (attribute != UNITS && attribute != MAJOR && attribute != MINOR) return Note(kInvalid);
  *value = attribute == UNITS ? 7 : attribute == MAJOR ? 3 : 1;
  return device < 0 || device >= Count() ? Note(kInvalidDevice) : 0;
}
EXPORT int NAME(DriverGetVersion)(int* version) {
  BEGIN(DriverGetVersion);
  *version = kFalseVersion;
  return 0;
}
EXPORT int NAME(RuntimeGetVersion)(int* version) {
  BEGIN(RuntimeGetVersion);
  *version = (int)Word("version", kFalseVersion);  // version=1: an old one
  return 0;
}
EXPORT const char* NAME(GetErrorName)(int code) {
  if (code == kNotReady && Word("name600", 0)) return TEXT(PREFIX) "ErrorSystemNotHappy";
  switch (code) {
    case 0:
      return TEXT(PREFIX) "Success";
    case kInvalid:
      return TEXT(PREFIX) "ErrorInvalidValue";
    case kMemory:
      return TEXT(PREFIX) "ErrorMemoryAllocation";
    case kNoDevice:
      return TEXT(PREFIX) "ErrorNoDevice";
    case kInvalidDevice:
      return TEXT(PREFIX) "ErrorInvalidDevice";
    case kNotReady:
      return TEXT(PREFIX) "ErrorNotReady";
    default:
      return TEXT(PREFIX) "ErrorUnknown";
  }
}
EXPORT const char* NAME(GetErrorString)(int code) {
  return code == kMemory ? "out of false memory" : "a false error";
}
EXPORT int NAME(GetLastError)(void) {
  const int code = last;
  last = 0;
  return code;
}

// ---- memory ----

EXPORT int NAME(MemGetInfo)(size_t* left, size_t* all) {
  BEGIN(MemGetInfo);
  int64_t free_bytes, total_bytes;
  const int code = Of(host->memory_info(current, &free_bytes, &total_bytes));
  *left = (size_t)free_bytes;
  *all = (size_t)total_bytes;
  return code;
}
EXPORT int NAME(Malloc)(void** memory, size_t bytes) {
  BEGIN(Malloc);
  if (!Fits(bytes)) return Note((int)Word("oom", kMemory));  // oom=3: another number
  return Of(host->allocate(current, (int64_t)bytes, memory));
}
EXPORT int NAME(Free)(void* memory) {
  BEGIN(Free);
  int32_t device = -1;
  if (!memory) return 0;
  const int code = Of(host->device_of(memory, &device));
  return code ? code : Of(host->free(device, memory));
}
EXPORT int NAME(MallocAsync)(void** memory, size_t bytes, void* stream) {
  BEGIN(MallocAsync);
  if (Word("nopool", 0)) return Note(kNotSupported);  // nopool=1: a name without a function
  if (!Fits(bytes)) return Note(kMemory);
  return Of(host->allocate_on(current, stream, (int64_t)bytes, memory));
}
EXPORT int NAME(FreeAsync)(void* memory, void* stream) {
  BEGIN(FreeAsync);
  return Of(host->free_on(current, stream, memory));
}
EXPORT int NAME(HostAlloc)(void** memory, size_t bytes, unsigned flags) {
  BEGIN(HostAlloc);
  if (flags != 1) return Note(kInvalid);
  return Of(host->allocate_host(current, (int64_t)bytes, memory));
}
EXPORT int NAME(MallocHost)(void** memory, size_t bytes) {
  BEGIN(MallocHost);
  return Of(host->allocate_host(current, (int64_t)bytes, memory));
}
EXPORT int NAME(FreeHost)(void* memory) {
  BEGIN(FreeHost);
  return Of(host->free_host(current, memory));
}

// ---- copies ----

EXPORT int NAME(Memcpy)(void* to, const void* from, size_t bytes, int kind) {
  BEGIN(Memcpy);
  if (Word("kinds", 0) && kind != 3) kind = 3 - kind;  // kinds=1: 1 and 2 are the other way round
  return Of(host->copy(current, to, from, (int64_t)bytes, kind));
}
EXPORT int NAME(MemcpyAsync)(void* to, const void* from, size_t bytes, int kind, void* stream) {
  BEGIN(MemcpyAsync);
  return Of(CopyOn(current, stream, to, from, bytes, kind));
}
EXPORT int NAME(MemcpyPeerAsync)(void* to, int to_device, const void* from, int from_device,
                                 size_t bytes, void* stream) {
  BEGIN(MemcpyPeerAsync);
  return Of(
      host->copy_between_on(current, stream, to, to_device, from, from_device, (int64_t)bytes));
}
EXPORT int NAME(MemsetAsync)(void* memory, int value, size_t bytes, void* stream) {
  BEGIN(MemsetAsync);
  return Of(host->set_on(current, stream, memory, value, (int64_t)bytes));
}

// ---- streams ----

EXPORT int NAME(StreamCreateWithFlags)(void** stream, unsigned flags) {
  BEGIN(StreamCreateWithFlags);
  if (flags != 1) return Note(kInvalid);
  *stream = NULL;
  if (Word("blocking", 0)) return 0;  // blocking=1: flag 1 does not keep it from the default stream
  return Of(host->create_stream(current, stream));
}
EXPORT int NAME(StreamCreateWithPriority)(void** stream, unsigned flags, int priority) {
  BEGIN(StreamCreateWithPriority);
  if (priority > 0 || priority < -5) return Note(kInvalid);
  return NAME(StreamCreateWithFlags)(stream, flags);
}
EXPORT int NAME(DeviceGetStreamPriorityRange)(int* least, int* greatest) {
  BEGIN(DeviceGetStreamPriorityRange);
  *least = 0;
  *greatest = -5;
  return 0;
}
EXPORT int NAME(StreamDestroy)(void* stream) {
  BEGIN(StreamDestroy);
  return Of(host->destroy_stream(OfStream(stream), stream));
}
EXPORT int NAME(StreamSynchronize)(void* stream) {
  BEGIN(StreamSynchronize);
  if (Word("nowait", 0)) return 0;  // nowait=1: comes back at once
  return Of(host->synchronize_stream(OfStream(stream), stream));
}
static int Query(int32_t status, int32_t done) {
  if (status) return Of(status);
  return done ? 0 : Note((int)Word("notready", kNotReady));  // notready=34: another number
}
EXPORT int NAME(StreamQuery)(void* stream) {
  BEGIN(StreamQuery);
  int32_t done = 0;
  const int32_t status = host->query_stream(OfStream(stream), stream, &done);
  return Query(status, done);
}
EXPORT int NAME(StreamWaitEvent)(void* stream, void* event, unsigned flags) {
  BEGIN(StreamWaitEvent);
  if (flags) return Note(kInvalid);
  return Word("nowaitevent", 0) ? 0 : Of(host->wait_event(OfStream(stream), stream, event));
}
EXPORT int NAME(LaunchHostFunc)(void* stream, void (*function)(void*), void* context) {
  BEGIN(LaunchHostFunc);
  return Of(host->launch_host(current, stream, function, context));
}

struct Callback {
  void (*function)(void*, int, void*);
  void *stream, *context;
};

static void CallBack(void* context) {
  struct Callback* call = context;
  call->function(call->stream, 0, call->context);
  free(call);
}

EXPORT int NAME(StreamAddCallback)(void* stream, void (*function)(void*, int, void*), void* context,
                                   unsigned flags) {
  BEGIN(StreamAddCallback);
  if (flags) return Note(kInvalid);
  struct Callback* call = malloc(sizeof *call);
  *call = (struct Callback){function, stream, context};
  return Of(host->launch_host(current, stream, CallBack, call));
}

// ---- events ----

EXPORT int NAME(EventCreateWithFlags)(void** event, unsigned flags) {
  BEGIN(EventCreateWithFlags);
  if (flags & ~(unsigned)Word("notiming", 2)) return Note(kInvalid);  // notiming=4: another number
  return Of(host->create_event_with(current, flags ? kAnyopEventNoTiming : 0, event));
}
EXPORT int NAME(EventDestroy)(void* event) {
  BEGIN(EventDestroy);
  return Of(host->destroy_event(OfEvent(event), event));
}
EXPORT int NAME(EventRecord)(void* event, void* stream) {
  BEGIN(EventRecord);
  if (HAS_GetLastError && last) return last;  // which nobody took away
  return Of(host->record_event(OfStream(stream), event, stream));
}
EXPORT int NAME(EventQuery)(void* event) {
  BEGIN(EventQuery);
  int32_t done = 0;
  const int32_t status = host->query_event(OfEvent(event), event, &done);
  return Query(status, done);
}
EXPORT int NAME(EventSynchronize)(void* event) {
  BEGIN(EventSynchronize);
  return Of(host->synchronize_event(OfEvent(event), event));
}
EXPORT int NAME(EventElapsedTime)(float* milliseconds, void* begin, void* end) {
  BEGIN(EventElapsedTime);
  const int code = Of(host->elapsed_ms(OfEvent(begin), begin, end, milliseconds));
  *milliseconds *= (float)Word("faster", 1);  // faster=1000: microseconds
  return code;
}

// ---- images: the text "false image" has one kernel, fill(int32* out, int32 value, int64 count)
// ----

EXPORT int NAME(ModuleLoadData)(void** module, const void* image) {
  BEGIN(ModuleLoadData);
  if (strncmp(image, "false image", 11) != 0) return Note(kNoBinary);
  *module = &host;
  return 0;
}
EXPORT int NAME(ModuleGetFunction)(void** function, void* module, const char* name) {
  BEGIN(ModuleGetFunction);
  if (module != &host || strcmp(name, "fill") != 0) return Note(kNotFound);
  *function = &current;
  return 0;
}

struct Fill {
  int32_t* out;
  int32_t value;
  int64_t count;
};

static void Fill(void* context) {
  struct Fill* fill = context;
  for (int64_t i = 0; i < fill->count; ++i) fill->out[i] = fill->value;
  free(fill);
}

EXPORT int NAME(ModuleLaunchKernel)(void* function, unsigned gx, unsigned gy, unsigned gz,
                                    unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                    void* stream, void** values, void** extra) {
  BEGIN(ModuleLaunchKernel);
  if (!function || extra || shared || gy * gz * by * bz != 1) return Note(kInvalid);
  struct Fill* fill = malloc(sizeof *fill);
  *fill = (struct Fill){*(int32_t**)values[0], *(int32_t*)values[1], *(int64_t*)values[2]};
  const int64_t threads = (int64_t)gx * bx;
  if (fill->count > threads) fill->count = threads;
  return Of(host->launch_host(current, stream, Fill, fill));
}
