// SPDX-License-Identifier: Apache-2.0
// Both ends of a copy must be what its kind says: memory of another device, or of the host, is
// refused, as is a run that leaves its allocation.
#include "host_memory.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "anyop/device.h"
#include "fork.h"
#include "host_stream.h"
#include "last_error.h"
#include "regions.h"

namespace anyop::host {
namespace {

constexpr int32_t kHost = -1;  // as a side of a copy
constexpr int64_t kStagedBytes = int64_t{1} << 20;

// One side of a copy: bytes of memory that shall be those of a device, or of the host.
int32_t CheckSide(const char* side, const void* memory, int64_t bytes, int32_t owner,
                  Region* region) {
  *region = FindRegion(memory);
  const auto address = reinterpret_cast<uintptr_t>(memory);
  const bool inside =
      region->owner == kNoDevice || address - region->begin + bytes <= uintptr_t(region->bytes);
  if (!inside)
    return RefuseOnDevice(kAnyopValueError, "host: %s of %lld bytes at %p leaves its allocation",
                          side, (long long)bytes, memory);
  if (owner == kHost ? memory && region->owner < 0 : region->owner == owner) return kAnyopOk;
  if (region->owner >= 0)
    return RefuseOnDevice(kAnyopValueError, "host: %s at %p is memory of device %d, expected %s",
                          side, memory, region->owner,
                          owner == kHost ? "memory of the host" : "that of another device");
  return RefuseOnDevice(kAnyopValueError, "host: %s at %p is no memory of %s", side, memory,
                        owner == kHost ? "the host" : "the device");
}

int32_t CheckSize(int64_t bytes) {
  if (bytes >= 0) return kAnyopOk;
  return RefuseOnDevice(kAnyopValueError, "host: a copy of %lld bytes", (long long)bytes);
}

struct Sides {
  Region to, from;
};

int32_t CheckCopy(int32_t device, const void* to, const void* from, int64_t bytes, int32_t kind,
                  Sides* sides) {
  if (int32_t status = CheckDevice(device)) return status;
  if (int32_t status = CheckSize(bytes)) return status;
  if (kind < kAnyopHostToDevice || kind > kAnyopDeviceToDevice)
    return RefuseOnDevice(kAnyopValueError, "host: a copy of kind %d, expected 1 to 3", kind);
  if (bytes == 0) return kAnyopOk;
  const int32_t to_owner = kind == kAnyopDeviceToHost ? kHost : device;
  const int32_t from_owner = kind == kAnyopHostToDevice ? kHost : device;
  if (int32_t status = CheckSide("the target", to, bytes, to_owner, &sides->to)) return status;
  return CheckSide("the source", from, bytes, from_owner, &sides->from);
}

int32_t PutCopy(Stream* stream, void* to, const void* from, int64_t bytes) {
  return stream->Put([=] { std::memmove(to, from, static_cast<size_t>(bytes)); });
}

// From memory that the caller may change or free as soon as copy_on has returned.
int32_t PutStaged(Stream* stream, void* to, const void* from, int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  const std::shared_ptr<void> staged(std::malloc(size), std::free);
  if (!staged) return RefuseOnDevice(kAnyopOutOfMemory, "host: out of memory");
  std::memcpy(staged.get(), from, size);
  return stream->Put([=] { std::memcpy(to, staged.get(), size); });
}

}  // namespace

int32_t Allocate(int32_t device, int64_t bytes, void** memory) {
  *memory = nullptr;
  if (int32_t status = CheckDevice(device)) return status;
  return MakeRegion(device, bytes, memory);
}

int32_t Free(int32_t device, void* memory) {
  if (!memory || Forked()) return kAnyopOk;
  if (int32_t status = SynchronizeDevice(device)) return status;
  return DropRegion(device, memory);
}

int32_t AllocateOn(int32_t device, void* stream, int64_t bytes, void** memory) {
  *memory = nullptr;
  std::shared_ptr<Stream> found;
  if (int32_t status = FindStream(device, stream, &found)) return status;
  return MakeRegion(device, bytes, memory);
}

int32_t FreeOn(int32_t device, void* stream, void* memory) {
  if (!memory || Forked()) return kAnyopOk;
  std::shared_ptr<Stream> found;
  if (int32_t status = FindStream(device, stream, &found)) return status;
  if (FindRegion(memory).owner != device || found->Idle()) return DropRegion(device, memory);
  return found->Put([=] { (void)DropRegion(device, memory); });
}

int32_t AllocateHost(int32_t device, int64_t bytes, void** memory) {
  *memory = nullptr;
  if (int32_t status = CheckDevice(device)) return status;
  return MakeRegion(kPinned, bytes, memory);
}

int32_t FreeHost(int32_t device, void* memory) {
  if (!memory || Forked()) return kAnyopOk;
  if (int32_t status = CheckDevice(device)) return status;
  for (int32_t d = 0; d < kDevices; ++d) {
    if (int32_t status = SynchronizeDevice(d)) return status;
  }
  return DropRegion(kPinned, memory);
}

int32_t IsHost(const void* memory, int32_t* yes) {
  *yes = !Forked() && FindRegion(memory).owner == kPinned;
  return kAnyopOk;
}

int32_t DeviceOf(const void* memory, int32_t* device) {
  if (Forked()) return CheckDevice(0);
  const int32_t owner = FindRegion(memory).owner;
  *device = owner >= 0 ? owner : -1;
  return kAnyopOk;
}

int32_t MemoryInfo(int32_t device, int64_t* free_bytes, int64_t* total_bytes) {
  if (int32_t status = CheckIndex(device)) return status;
  const int64_t page = sysconf(_SC_PAGESIZE);
  *free_bytes = page * sysconf(_SC_AVPHYS_PAGES);
  *total_bytes = page * sysconf(_SC_PHYS_PAGES);
  return kAnyopOk;
}

int32_t Copy(int32_t device, void* to, const void* from, int64_t bytes, int32_t kind) {
  Sides sides;
  std::shared_ptr<Stream> stream;
  if (int32_t status = CheckCopy(device, to, from, bytes, kind, &sides)) return status;
  if (bytes == 0) return kAnyopOk;
  if (int32_t status = FindStream(device, nullptr, &stream)) return status;
  if (stream->Idle()) {
    std::memmove(to, from, static_cast<size_t>(bytes));
    return kAnyopOk;
  }
  if (int32_t status = PutCopy(stream.get(), to, from, bytes)) return status;
  return stream->Wait();
}

int32_t CopyOn(int32_t device, void* stream, void* to, const void* from, int64_t bytes,
               int32_t kind) {
  Sides sides;
  std::shared_ptr<Stream> found;
  if (int32_t status = CheckCopy(device, to, from, bytes, kind, &sides)) return status;
  if (int32_t status = FindStream(device, stream, &found)) return status;
  if (bytes == 0) return kAnyopOk;
  if (kind == kAnyopHostToDevice && sides.from.owner != kPinned && bytes <= kStagedBytes)
    return PutStaged(found.get(), to, from, bytes);
  if (int32_t status = PutCopy(found.get(), to, from, bytes)) return status;
  const bool plain = sides.from.owner == kNoDevice || sides.to.owner == kNoDevice;
  return plain ? found->Wait() : int32_t{kAnyopOk};
}

int32_t CopyBetweenOn(int32_t device, void* stream, void* to, int32_t to_device, const void* from,
                      int32_t from_device, int64_t bytes) {
  Region region;
  std::shared_ptr<Stream> found;
  if (int32_t status = FindStream(device, stream, &found)) return status;
  if (int32_t status = CheckDevice(to_device)) return status;
  if (int32_t status = CheckDevice(from_device)) return status;
  if (int32_t status = CheckSize(bytes)) return status;
  if (bytes == 0) return kAnyopOk;
  if (int32_t status = CheckSide("the target", to, bytes, to_device, &region)) return status;
  if (int32_t status = CheckSide("the source", from, bytes, from_device, &region)) return status;
  return PutCopy(found.get(), to, from, bytes);
}

int32_t SetOn(int32_t device, void* stream, void* memory, int32_t value, int64_t bytes) {
  Region region;
  std::shared_ptr<Stream> found;
  if (int32_t status = FindStream(device, stream, &found)) return status;
  if (int32_t status = CheckSize(bytes)) return status;
  if (bytes == 0) return kAnyopOk;
  if (int32_t status = CheckSide("the target", memory, bytes, device, &region)) return status;
  return found->Put([=] { std::memset(memory, value, static_cast<size_t>(bytes)); });
}

}  // namespace anyop::host
