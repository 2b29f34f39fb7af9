// SPDX-License-Identifier: Apache-2.0
// The caches of the process by device, and their numbers.
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "caching_allocator.h"
#include "fork.h"
#include "loader.h"

namespace anyop {
namespace {

constexpr int32_t kMaxDevices = 64;
constexpr int kMaxPlatforms = 32;

struct Platform {
  std::atomic<const AnyopDevice*> device{nullptr};
  std::atomic<CachedMemory*> caches[kMaxDevices + 1] = {};  // the first is of pinned memory
};
Platform platforms[kMaxPlatforms];
std::mutex making;

// The platform's place; with take, a new one for who has none. nullptr: there is none.
Platform* PlaceOf(const AnyopDevice* device, bool take) {
  for (Platform& platform : platforms) {
    const AnyopDevice* there = platform.device.load(std::memory_order_acquire);
    if (there == device) return &platform;
    if (there) continue;
    if (!take) return nullptr;
    platform.device.store(device, std::memory_order_release);
    return &platform;
  }
  return nullptr;
}

int32_t ReadLimit(int64_t* bytes, std::string* error) {
  const char* text = std::getenv("ANYOP_DEVICE_MEMORY_LIMIT");
  if (!text || !*text) return kAnyopOk;
  char* end = nullptr;
  errno = 0;
  *bytes = std::strtoll(text, &end, 10);
  if (!errno && !*end && *bytes > 0) return kAnyopOk;
  *error = std::string("ANYOP_DEVICE_MEMORY_LIMIT is '") + text + "', expected a number of bytes";
  return kAnyopValueError;
}

// What a cache calls; what it can do without is asked for where it is used.
int32_t CheckFunctions(const AnyopDevice* device, bool pinned, std::string* error) {
  const bool memory = pinned ? HasFunction(device, &AnyopDevice::allocate_host) &&
                                   HasFunction(device, &AnyopDevice::free_host)
                             : HasFunction(device, &AnyopDevice::allocate) &&
                                   HasFunction(device, &AnyopDevice::free);
  const bool events = HasFunction(device, &AnyopDevice::create_event) &&
                      HasFunction(device, &AnyopDevice::record_event) &&
                      HasFunction(device, &AnyopDevice::synchronize_device);
  if (memory && events && HasFunction(device, &AnyopDevice::count)) return kAnyopOk;
  *error = std::string("device ") + device->name + " lacks functions that its " +
           (pinned ? "pinned memory" : "memory") + " needs (anyop device-check names them)";
  return kAnyopNotImplemented;
}

int32_t CheckIndex(const AnyopDevice* device, int32_t index, std::string* error) {
  int32_t count = 0;
  if (int32_t status = device->count(&count)) {
    *error = device->last_error();
    return status;
  }
  if (index == kPinnedMemory || (index >= 0 && index < count && index < kMaxDevices))
    return kAnyopOk;
  *error = std::string(device->name) + ": there is no device " + std::to_string(index) +
           "; there are " + std::to_string(count);
  return kAnyopDeviceError;
}

}  // namespace

int32_t CachedMemory::Make(const AnyopDevice* device, int32_t index, CachedMemory** cache,
                           std::string* error) {
  int64_t limit = 0;
  if (int32_t status = CheckFunctions(device, index == kPinnedMemory, error)) return status;
  if (int32_t status = CheckIndex(device, index, error)) return status;
  if (int32_t status = ReadLimit(&limit, error)) return status;
  WatchForks();
  std::lock_guard<std::mutex> lock(making);
  Platform* const platform = PlaceOf(device, true);
  if (!platform) {
    *error = "there are more kinds of device than memory is kept for";
    return kAnyopInternalError;
  }
  std::atomic<CachedMemory*>& place = platform->caches[index + 1];
  if (!place.load()) {
    auto* made = new CachedMemory(device, index);  // kept: threads may outlive main
    if (index != kPinnedMemory) made->stats_.limit_bytes = limit;
    place.store(made, std::memory_order_release);
  }
  *cache = place.load();
  return kAnyopOk;
}

int32_t CachedMemory::Find(const AnyopDevice* device, int32_t index, CachedMemory** cache,
                           std::string* error) {
  if (!device) {
    *error = "the device whose memory is meant is NULL";
    return kAnyopValueError;
  }
  if (index >= kPinnedMemory && index < kMaxDevices) {
    if (Platform* platform = PlaceOf(device, false)) {
      *cache = platform->caches[index + 1].load(std::memory_order_acquire);
      if (*cache) return kAnyopOk;
    }
  }
  if (Forked()) {
    *error = std::string(device->name) + ": " + kForkedText;
    return kAnyopDeviceError;
  }
  return Make(device, index, cache, error);
}

void CachedMemory::Stats(AnyopMemoryStats* stats) {
  Lock lock(mutex_, std::defer_lock);
  if (!Forked()) lock.lock();
  const uint32_t size = stats->size;
  const uint32_t written = size < sizeof stats_ ? size : sizeof stats_;
  std::memcpy(stats, &stats_, written);
  if (size >= sizeof size) stats->size = size;
}

void CachedMemory::ResetPeak() {
  if (Forked()) return;
  Lock lock(mutex_);
  stats_.allocated_bytes_peak = stats_.allocated_bytes;
  stats_.active_bytes_peak = stats_.active_bytes;
  stats_.reserved_bytes_peak = stats_.reserved_bytes;
  stats_.blocks_peak = stats_.blocks;
  stats_.segments_peak = stats_.segments;
}

void CachedMemory::SetLimit(int64_t bytes) {
  if (Forked()) return;
  Lock lock(mutex_);
  stats_.limit_bytes = bytes;
}

}  // namespace anyop
