// SPDX-License-Identifier: Apache-2.0
// What ACL does otherwise than CUDA: a thread has no device before it sets one; a stream that is
// ended loses its work; an event that was never recorded is not done; states of streams and of
// events are numbered the other way round; an error's text is the thread's last one.
#include "acl.h"

#include <atomic>
#include <cstdio>
#include <cstring>

#include "acl_api.h"
#include "ended_streams.h"
#include "translated.h"

namespace anyop::cuda_like {
namespace {

Acl acl;

// Codes of ACL that the plugin knows by CUDA's numbers; the others are above 100000.
Code Known(Code code) {
  if (code == kAclOutOfMemory) return kOutOfMemory;
  return code == kAclNoDevice ? kNoDevice : code;
}

Code GetDeviceCount(int* count) {
  uint32_t found = 0;
  const Code code = acl.aclrtGetDeviceCount(&found);
  *count = static_cast<int>(found);
  return code || found ? Known(code) : kNoDevice;
}

Code SetDevice(int device) { return Known(acl.aclrtSetDevice(device)); }

Code GetDevice(int* device) {
  if (acl.aclrtGetDevice(device) == 0) return 0;
  *device = 0;
  return SetDevice(0);
}

Code DeviceSynchronize() { return Known(acl.aclrtSynchronizeDevice()); }

Code GetDeviceProperties(void* properties, int) {
  const char* name = acl.aclrtGetSocName();
  std::snprintf(static_cast<char*>(properties), 256, "%s", name ? name : "Ascend");
  return 0;
}

const char* GetErrorName(Code code) {
  static thread_local char name[32];
  if (code == kNotReady) return "aclErrorNotReady";
  const Code theirs = code == kOutOfMemory ? kAclOutOfMemory : code;
  std::snprintf(name, sizeof name, "ACL error %d", code == kNoDevice ? kAclNoDevice : theirs);
  return name;
}

const char* GetErrorString(Code) {
  const char* text = acl.aclGetRecentErrMsg();
  return text ? text : "no text";
}

Code GetVersion(int* version) {
  int32_t major = 0, minor = 0, patch = 0;
  const Code code = acl.aclrtGetVersion(&major, &minor, &patch);
  *version = major * 1000000 + minor * 1000 + patch;
  return Known(code);
}

// ---- memory ----

Code MemGetInfo(size_t* left, size_t* all) {
  return Known(acl.aclrtGetMemInfo(kAclHbm, left, all));
}
Code Malloc(void** memory, size_t bytes) {
  return Known(acl.aclrtMalloc(memory, bytes, kAclHugeFirst));
}
Code Free(void* memory) { return memory ? Known(acl.aclrtFree(memory)) : 0; }
Code MallocHost(void** memory, size_t bytes) { return Known(acl.aclrtMallocHost(memory, bytes)); }
Code FreeHost(void* memory) { return Known(acl.aclrtFreeHost(memory)); }
Code Memcpy(void* to, const void* from, size_t bytes, int kind) {
  return Known(acl.aclrtMemcpy(to, bytes, from, bytes, kind));
}
Code MemcpyAsync(void* to, const void* from, size_t bytes, int kind, Handle stream) {
  return Known(acl.aclrtMemcpyAsync(to, bytes, from, bytes, kind, stream));
}
Code MemsetAsync(void* memory, int value, size_t bytes, Handle stream) {
  return Known(acl.aclrtMemsetAsync(memory, bytes, value, bytes, stream));
}

// ---- streams ----

Code StreamQuery(Handle stream) {
  int status = 0;
  if (Code code = acl.aclrtStreamQuery(stream, &status)) return Known(code);
  return status == kAclStreamComplete ? 0 : kNotReady;
}

Code PriorityRange(int* least, int* greatest) {
  return Known(acl.aclrtDeviceGetStreamPriorityRange(least, greatest));
}
Code CreateWithPriority(Handle* stream, unsigned, int priority) {
  return Known(acl.aclrtCreateStreamWithConfig(stream, static_cast<uint32_t>(priority), 0));
}
Code CreateStream(Handle* stream, unsigned flags) {
  int least = 0, greatest = 0;
  if (Code code = PriorityRange(&least, &greatest)) return code;
  return CreateWithPriority(stream, flags, least);
}

Code StreamDestroy(Handle stream) {
  static auto* ended = new EndedStreams;
  int device = 0;
  if (Code code = GetDevice(&device)) return code;
  return Known(ended->End(device, stream, StreamQuery, acl.aclrtDestroyStream));
}

Code StreamSynchronize(Handle stream) { return Known(acl.aclrtSynchronizeStream(stream)); }
Code LaunchHostFunc(Handle stream, void (*function)(void*), void* context) {
  return Known(acl.aclrtLaunchHostFunc(stream, function, context));
}

// ---- events ----

struct Event {
  Handle handle = nullptr;
  std::atomic<bool> recorded{false};
};

Event* Of(Handle event) { return static_cast<Event*>(event); }

Code EventCreate(Handle* event, unsigned flags) {
  auto* made = new Event;
  const uint32_t kind = flags & kDisableTiming ? kAclEventSync : kAclEventSync | kAclEventTimed;
  const Code code = acl.aclrtCreateEventExWithFlag(&made->handle, kind);
  if (code) delete made;
  *event = code ? nullptr : made;
  return Known(code);
}
Code EventDestroy(Handle event) {
  const Code code = acl.aclrtDestroyEvent(Of(event)->handle);
  delete Of(event);
  return Known(code);
}
Code EventRecord(Handle event, Handle stream) {
  const Code code = acl.aclrtRecordEvent(Of(event)->handle, stream);
  if (code == 0) Of(event)->recorded = true;
  return Known(code);
}
Code EventQuery(Handle event) {
  int status = kAclEventComplete;
  if (!Of(event)->recorded) return 0;
  if (Code code = acl.aclrtQueryEventStatus(Of(event)->handle, &status)) return Known(code);
  return status == kAclEventComplete ? 0 : kNotReady;
}
Code EventSynchronize(Handle event) {
  return Of(event)->recorded ? Known(acl.aclrtSynchronizeEvent(Of(event)->handle)) : 0;
}
Code StreamWaitEvent(Handle stream, Handle event, unsigned) {
  return Of(event)->recorded ? Known(acl.aclrtStreamWaitEvent(stream, Of(event)->handle)) : 0;
}
Code EventElapsedTime(float* milliseconds, Handle begin, Handle end) {
  return Known(acl.aclrtEventElapsedTime(milliseconds, Of(begin)->handle, Of(end)->handle));
}

void Fill(Api* api) {
#define ANYOP_SET(member, function) api->member = function;
  ANYOP_TRANSLATED(ANYOP_SET)
#undef ANYOP_SET
}

}  // namespace

std::string UseAcl(Library* library) {
#define ANYOP_NAMED(result, name, parameters) {#name, reinterpret_cast<void**>(&acl.name)},
  const Named functions[] = {ANYOP_ACL_FUNCTIONS(ANYOP_NAMED)};
#undef ANYOP_NAMED
  std::string problem = FindAll(*library, "ACL", functions);
  if (!problem.empty()) return problem;
  const Code code = acl.aclInit(nullptr);
  if (code != 0 && code != kAclInitialized)
    return library->path + ": aclInit says \"" + GetErrorString(code) + "\" (" +
           std::to_string(code) + ")";
  Fill(&library->api);
  return "";
}

}  // namespace anyop::cuda_like
