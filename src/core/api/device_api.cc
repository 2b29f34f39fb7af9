// SPDX-License-Identifier: Apache-2.0
// The C ABI of device.h and device_memory.h.
#include <string>

#include "anyop/device_memory.h"
#include "api/c_error.h"
#include "caching_allocator.h"
#include "loader.h"
#include "router/router.h"

namespace {

// body takes a place for a text and returns a status.
template <typename Body>
int32_t Told(const Body& body) {
  return anyop::Guarded([&] {
    std::string error;
    const int32_t status = body(&error);
    return status == kAnyopOk ? status : anyop::SetError(status, error.c_str());
  });
}

}  // namespace

int32_t AnyopRegisterDevice(const AnyopDevice* device) {
  return Told([&](std::string* error) { return anyop::RegisterDevice(device, error); });
}

int32_t AnyopLoadDevice(const char* path, const AnyopDevice** device) {
  return Told([&](std::string* error) { return anyop::LoadDevice(path, device, error); });
}

int32_t AnyopUseDevice(const AnyopDevice* device) {
  return Told([&](std::string* error) {
    const int32_t status = anyop::UseDevice(device, error);
    if (status == kAnyopOk) anyop::PublishWhatIsKnown();  // its kernels, where there are any
    return status;
  });
}

const AnyopDevice* AnyopFindDevice(int32_t device_type) { return anyop::FindDevice(device_type); }

const AnyopDevice* AnyopFindDeviceByName(const char* name) {
  const AnyopDevice* found = nullptr;
  Told([&](std::string* error) {
    found = anyop::FindDeviceByName(name, error);
    return found ? kAnyopOk : kAnyopValueError;
  });
  return found;
}

// ---- device_memory.h ----

namespace {

using anyop::CachedMemory;
using anyop::kPinnedMemory;

// body takes the cache and a place for a text.
template <typename Body>
int32_t Cached(const AnyopDevice* device, int32_t index, const Body& body) {
  return Told([&](std::string* error) {
    CachedMemory* cache = nullptr;
    const int32_t status = CachedMemory::Find(device, index, &cache, error);
    return status ? status : body(cache, error);
  });
}

// A caller's index is never that of pinned memory.
int32_t Index(int32_t index) { return index < 0 ? INT32_MIN : index; }

int32_t Missing(const char* what) { return anyop::SetError(kAnyopValueError, what); }

int32_t Malloc(const AnyopDevice* device, int32_t cache_index, int32_t index, void* stream,
               int64_t bytes, void** memory) {
  if (!memory) return Missing("memory is asked for without a place for it");
  return Cached(device, cache_index, [&](CachedMemory* cache, std::string* error) {
    return cache->Take(index, stream, bytes, memory, error);
  });
}

int32_t Free(const AnyopDevice* device, int32_t index, void* memory) {
  if (!memory) return kAnyopOk;
  return Cached(device, index, [&](CachedMemory* cache, std::string* error) {
    return cache->GiveBack(memory, error);
  });
}

int32_t Stats(const AnyopDevice* device, int32_t index, AnyopMemoryStats* stats) {
  if (!stats) return Missing("statistics are asked for without a place for them");
  return Cached(device, index, [&](CachedMemory* cache, std::string*) {
    cache->Stats(stats);
    return int32_t{kAnyopOk};
  });
}

int32_t ResetPeak(const AnyopDevice* device, int32_t index) {
  return Cached(device, index, [&](CachedMemory* cache, std::string*) {
    cache->ResetPeak();
    return int32_t{kAnyopOk};
  });
}

int32_t Empty(const AnyopDevice* device, int32_t index) {
  return Cached(device, index,
                [&](CachedMemory* cache, std::string* error) { return cache->Empty(error); });
}

}  // namespace

int32_t AnyopDeviceMalloc(const AnyopDevice* device, int32_t index, void* stream, int64_t bytes,
                          void** memory) {
  return Malloc(device, Index(index), index, stream, bytes, memory);
}

int32_t AnyopDeviceFree(const AnyopDevice* device, int32_t index, void* memory) {
  return Free(device, Index(index), memory);
}

int32_t AnyopDeviceRecordStream(const AnyopDevice* device, int32_t index, void* memory,
                                void* stream) {
  return Cached(device, Index(index), [&](CachedMemory* cache, std::string* error) {
    return cache->Record(memory, index, stream, error);
  });
}

int64_t AnyopDeviceBlockBytes(const AnyopDevice* device, int32_t index, const void* memory) {
  int64_t bytes = 0;
  Cached(device, Index(index), [&](CachedMemory* cache, std::string*) {
    bytes = cache->BytesOf(memory);
    return int32_t{kAnyopOk};
  });
  return bytes;
}

int32_t AnyopDeviceEmptyCache(const AnyopDevice* device, int32_t index) {
  return Empty(device, Index(index));
}

int32_t AnyopDeviceMemoryStats(const AnyopDevice* device, int32_t index, AnyopMemoryStats* stats) {
  return Stats(device, Index(index), stats);
}

int32_t AnyopDeviceResetPeak(const AnyopDevice* device, int32_t index) {
  return ResetPeak(device, Index(index));
}

int32_t AnyopDeviceSetMemoryLimit(const AnyopDevice* device, int32_t index, int64_t bytes) {
  if (bytes < 0) return Missing("the limit of memory is less than 0");
  return Cached(device, Index(index), [&](CachedMemory* cache, std::string*) {
    cache->SetLimit(bytes);
    return int32_t{kAnyopOk};
  });
}

int32_t AnyopHostMalloc(const AnyopDevice* device, int32_t index, int64_t bytes, void** memory) {
  return Malloc(device, kPinnedMemory, index, nullptr, bytes, memory);
}

int32_t AnyopHostFree(const AnyopDevice* device, void* memory) {
  return Free(device, kPinnedMemory, memory);
}

int32_t AnyopHostRecordStream(const AnyopDevice* device, void* memory, int32_t index,
                              void* stream) {
  return Cached(device, kPinnedMemory, [&](CachedMemory* cache, std::string* error) {
    return cache->Record(memory, index, stream, error);
  });
}

int32_t AnyopHostEmptyCache(const AnyopDevice* device) { return Empty(device, kPinnedMemory); }

int32_t AnyopHostMemoryStats(const AnyopDevice* device, AnyopMemoryStats* stats) {
  return Stats(device, kPinnedMemory, stats);
}

int32_t AnyopHostResetPeak(const AnyopDevice* device) { return ResetPeak(device, kPinnedMemory); }
