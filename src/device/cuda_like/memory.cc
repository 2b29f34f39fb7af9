// SPDX-License-Identifier: Apache-2.0
// Copies keep device.h's promise for plain memory of the host by waiting: what a vendor's runtime
// has read when it returns, its documents do not say.
#include "memory.h"

#include <algorithm>

#include "fork.h"
#include "owned_blocks.h"
#include "stream_memory.h"

namespace anyop::cuda_like {
namespace {

constexpr int32_t kNobody = kPinned - 1;

enum class From { kPlain, kRuntimeStream, kOwnStream };

struct Block {
  int64_t bytes;
  int32_t owner;
  From from;
};

OwnedBlocks<Block>& TheBlocks() {
  static auto* blocks = new OwnedBlocks<Block>;
  return *blocks;
}

int32_t OwnerOf(const void* memory) {
  uintptr_t begin;
  Block block;
  return TheBlocks().Find(memory, &begin, &block) ? block.owner : kNobody;
}

// Takes a block out of the table.
int32_t Take(int32_t owner, void* memory, Block* block) {
  if (TheBlocks().Take(owner, memory, block)) return kAnyopOk;
  return RefuseOnDevice(kAnyopValueError, "%s: %p was not allocated by %s (foreign, or freed)",
                        TheRuntime().name.c_str(), memory,
                        owner == kPinned ? "allocate_host" : "this device");
}

int32_t CheckCopy(int32_t device, int64_t bytes, int32_t kind) {
  if (int32_t status = CheckDevice(device)) return status;
  if (int32_t status = CheckBytes(bytes)) return status;
  if (kind >= kAnyopHostToDevice && kind <= kAnyopDeviceToDevice) return kAnyopOk;
  return RefuseOnDevice(kAnyopValueError, "%s: a copy of kind %d, expected 1 to 3",
                        TheRuntime().name.c_str(), kind);
}

}  // namespace

int32_t Allocate(int32_t device, int64_t bytes, void** memory) {
  *memory = nullptr;
  if (int32_t status = CheckDevice(device)) return status;
  if (int32_t status = CheckBytes(bytes)) return status;
  if (bytes == 0) return kAnyopOk;
  const int32_t status = On(device, "allocating memory", [&] {
    const Code code = TheApi().Malloc(memory, static_cast<size_t>(bytes));
    if (code != kOutOfMemory || TheRuntime().has_stream_memory) return code;
    if (Code failed = ReleaseKept(device)) return failed;
    return TheApi().Malloc(memory, static_cast<size_t>(bytes));
  });
  if (status == kAnyopOk) TheBlocks().Keep(*memory, {bytes, device, From::kPlain});
  return status;
}

int32_t Free(int32_t device, void* memory) {
  Block block;
  if (!memory || Forked()) return kAnyopOk;
  if (int32_t status = CheckDevice(device)) return status;
  if (int32_t status = Take(device, memory, &block)) return status;
  return On(device, "freeing memory", [&] { return TheApi().Free(memory); });
}

int32_t AllocateOn(int32_t device, void* stream, int64_t bytes, void** memory) {
  *memory = nullptr;
  if (int32_t status = CheckDevice(device)) return status;
  if (int32_t status = CheckBytes(bytes)) return status;
  if (bytes == 0) return kAnyopOk;
  Runtime& runtime = TheRuntime();
  Block block = {bytes, device, From::kRuntimeStream};
  const int32_t status = On(device, "allocating memory on a stream", [&] {
    if (runtime.has_stream_memory) {
      const Code code = TheApi().MallocAsync(memory, static_cast<size_t>(bytes), stream);
      if (code != kNotSupported) return code;
      if (TheApi().GetLastError) TheApi().GetLastError();
      runtime.has_stream_memory = false;  // the name alone was there
    }
    block.from = From::kOwnStream;
    return TakeKept(device, stream, bytes, memory, &block.bytes);
  });
  if (status == kAnyopOk) TheBlocks().Keep(*memory, block);
  return status;
}

int32_t FreeOn(int32_t device, void* stream, void* memory) {
  Block block;
  if (!memory || Forked()) return kAnyopOk;
  if (int32_t status = CheckDevice(device)) return status;
  if (int32_t status = Take(device, memory, &block)) return status;
  if (block.from == From::kOwnStream) {
    KeepFor(device, stream, memory, block.bytes);
    return kAnyopOk;
  }
  return On(device, "freeing memory on a stream", [&] {
    if (block.from == From::kRuntimeStream) return TheApi().FreeAsync(memory, stream);
    const Code code = TheApi().StreamSynchronize(stream);
    const Code freed = TheApi().Free(memory);
    return code ? code : freed;
  });
}

int32_t AllocateHost(int32_t device, int64_t bytes, void** memory) {
  *memory = nullptr;
  if (int32_t status = CheckDevice(device)) return status;
  if (int32_t status = CheckBytes(bytes)) return status;
  if (bytes == 0) return kAnyopOk;
  const int32_t status = On(device, "allocating pinned memory", [&] {
    const Api& api = TheApi();
    const auto size = static_cast<size_t>(bytes);
    return api.HostAlloc ? api.HostAlloc(memory, size, kPortable) : api.MallocHost(memory, size);
  });
  if (status == kAnyopOk) TheBlocks().Keep(*memory, {bytes, kPinned, From::kPlain});
  return status;
}

int32_t FreeHost(int32_t device, void* memory) {
  Block block;
  if (!memory || Forked()) return kAnyopOk;
  if (int32_t status = CheckDevice(device)) return status;
  if (int32_t status = Take(kPinned, memory, &block)) return status;
  return On(device, "freeing pinned memory", [&] { return TheApi().FreeHost(memory); });
}

int32_t IsHost(const void* memory, int32_t* yes) {
  *yes = memory && !Forked() && OwnerOf(memory) == kPinned;
  return kAnyopOk;
}

int32_t DeviceOf(const void* memory, int32_t* device) {
  *device = memory && !Forked() ? std::max(OwnerOf(memory), -1) : -1;
  return kAnyopOk;
}

int32_t MemoryInfo(int32_t device, int64_t* free_bytes, int64_t* total_bytes) {
  size_t left = 0, all = 0;
  const int32_t status =
      On(device, "asking for free memory", [&] { return TheApi().MemGetInfo(&left, &all); });
  *free_bytes = static_cast<int64_t>(left);
  *total_bytes = static_cast<int64_t>(all);
  return status;
}

// A copy on the device returns before it is done.
int32_t Copy(int32_t device, void* to, const void* from, int64_t bytes, int32_t kind) {
  if (int32_t status = CheckCopy(device, bytes, kind)) return status;
  if (bytes == 0) return kAnyopOk;
  return On(device, "copying", [&] {
    const Code code = TheApi().Memcpy(to, from, static_cast<size_t>(bytes), kind);
    return code || kind != kAnyopDeviceToDevice ? code : TheApi().StreamSynchronize(nullptr);
  });
}

int32_t CopyOn(int32_t device, void* stream, void* to, const void* from, int64_t bytes,
               int32_t kind) {
  if (int32_t status = CheckCopy(device, bytes, kind)) return status;
  if (bytes == 0) return kAnyopOk;
  const void* host = kind == kAnyopHostToDevice ? from : to;
  const bool waits = kind != kAnyopDeviceToDevice && OwnerOf(host) != kPinned;
  return On(device, "copying on a stream", [&] {
    const Code code = TheApi().MemcpyAsync(to, from, static_cast<size_t>(bytes), kind, stream);
    return code || !waits ? code : TheApi().StreamSynchronize(stream);
  });
}

int32_t CopyBetweenOn(int32_t device, void* stream, void* to, int32_t to_device, const void* from,
                      int32_t from_device, int64_t bytes) {
  for (int32_t index : {device, to_device, from_device}) {
    if (int32_t status = CheckDevice(index)) return status;
  }
  if (int32_t status = CheckBytes(bytes)) return status;
  if (bytes == 0) return kAnyopOk;
  const Api& api = TheApi();
  if (!api.MemcpyPeerAsync)
    return RefuseOnDevice(kAnyopNotImplemented, "%s: %s has no copies between devices",
                          TheRuntime().name.c_str(), TheRuntime().row.vendor.c_str());
  return On(device, "copying between devices", [&] {
    return api.MemcpyPeerAsync(to, to_device, from, from_device, static_cast<size_t>(bytes),
                               stream);
  });
}

int32_t SetOn(int32_t device, void* stream, void* memory, int32_t value, int64_t bytes) {
  if (int32_t status = CheckDevice(device)) return status;
  if (int32_t status = CheckBytes(bytes)) return status;
  if (bytes == 0) return kAnyopOk;
  return On(device, "filling memory", [&] {
    return TheApi().MemsetAsync(memory, value & 255, static_cast<size_t>(bytes), stream);
  });
}

}  // namespace anyop::cuda_like
