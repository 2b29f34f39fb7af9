// SPDX-License-Identifier: Apache-2.0
// One table of blocks for all devices and for pinned memory, which is a buffer that stays mapped.
#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "fork.h"
#include "owned_blocks.h"
#include "streams.h"

namespace anyop::opencl {
namespace {

constexpr int64_t kStagedBytes = int64_t{1} << 20;

struct Block {
  Handle buffer;
  int64_t bytes;
  int32_t owner;
};

OwnedBlocks<Block>& TheBlocks() {
  static auto* blocks = new OwnedBlocks<Block>;
  return *blocks;
}

size_t Reserved(int64_t bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (static_cast<size_t>(bytes) + page - 1) / page * page;
}

// Takes a block out of the table.
int32_t Take(int32_t owner, void* memory, Block* block) {
  if (TheBlocks().Take(owner, memory, block)) return kAnyopOk;
  return RefuseOnDevice(kAnyopValueError, "opencl: %p was not allocated by %s", memory,
                        owner == kPinned ? "allocate_host" : "this device");
}

bool IsPinned(const void* memory) {
  uintptr_t begin;
  Block block;
  return TheBlocks().Find(memory, &begin, &block) && block.owner == kPinned;
}

// One side of a copy that is memory of the host's.
int32_t CheckHost(const void* memory, const char* side) {
  uintptr_t begin;
  Block block;
  if (memory && !(TheBlocks().Find(memory, &begin, &block) && block.owner != kPinned))
    return kAnyopOk;
  return RefuseOnDevice(kAnyopValueError, "opencl: %s at %p is no memory of the host", side,
                        memory);
}

int32_t Inside(int32_t device, const void* memory, int64_t bytes, const char* side, Place* place) {
  if (int32_t status = Resolve(device, memory, side, place)) return status;
  if (bytes <= place->left) return kAnyopOk;
  return RefuseOnDevice(kAnyopValueError, "opencl: %s of %lld bytes at %p leaves its allocation",
                        side, (long long)bytes, memory);
}

int32_t CheckCopy(int32_t device, int64_t bytes, int32_t kind) {
  if (int32_t status = CheckDevice(device)) return status;
  if (int32_t status = CheckBytes("a copy", bytes)) return status;
  if (kind >= kAnyopHostToDevice && kind <= kAnyopDeviceToDevice) return kAnyopOk;
  return RefuseOnDevice(kAnyopValueError, "opencl: a copy of kind %d, expected 1 to 3", kind);
}

int32_t Await(Handle event, Code code, const char* doing) {
  const Api& cl = TheRuntime().cl;
  if (code == 0) {
    code = cl.WaitForEvents(1, &event);
    cl.ReleaseEvent(event);
  }
  return Check(code, doing);
}

// The caller may change or free the source as soon as this has returned.
int32_t Write(Stream* stream, const Place& to, const void* from, int64_t bytes, bool waits) {
  const Api& cl = TheRuntime().cl;
  const auto size = static_cast<size_t>(bytes);
  const bool staged = !waits && bytes <= kStagedBytes && !IsPinned(from);
  const bool pinned = !waits && !staged && IsPinned(from);
  void* kept = staged ? std::malloc(size) : nullptr;
  if (staged && !kept) return RefuseOnDevice(kAnyopOutOfMemory, "opencl: out of memory");
  if (kept) std::memcpy(kept, from, size);
  Handle event = nullptr;
  const Code code = Put(stream, [&](Handle queue) {
    return cl.EnqueueWriteBuffer(queue, to.buffer, 0, to.offset, size, kept ? kept : from, 0,
                                 nullptr, pinned ? nullptr : &event);
  });
  if (!kept)
    return pinned ? Check(code, "copying to the device")
                  : Await(event, code, "copying to the device");
  const auto drop = [](Handle, Code, void* memory) { std::free(memory); };
  if (code || cl.SetEventCallback(event, 0, drop, kept)) {
    if (!code) cl.WaitForEvents(1, &event);
    std::free(kept);
  }
  if (!code) cl.ReleaseEvent(event);
  return Check(code, "copying to the device");
}

int32_t Read(Stream* stream, void* to, const Place& from, int64_t bytes, bool waits) {
  Handle event = nullptr;
  const bool behind = !waits && IsPinned(to);
  const Code code = Put(stream, [&](Handle queue) {
    return TheRuntime().cl.EnqueueReadBuffer(queue, from.buffer, 0, from.offset,
                                             static_cast<size_t>(bytes), to, 0, nullptr,
                                             behind ? nullptr : &event);
  });
  return behind ? Check(code, "copying from the device")
                : Await(event, code, "copying from the device");
}

int32_t Move(Stream* stream, const Place& to, const Place& from, int64_t bytes, bool waits) {
  Handle event = nullptr;
  const Code code = Put(stream, [&](Handle queue) {
    return TheRuntime().cl.EnqueueCopyBuffer(queue, from.buffer, to.buffer, from.offset, to.offset,
                                             static_cast<size_t>(bytes), 0, nullptr,
                                             waits ? &event : nullptr);
  });
  return waits ? Await(event, code, "copying on the device") : Check(code, "copying on the device");
}

int32_t CopyIn(int32_t device, void* stream, void* to, const void* from, int64_t bytes,
               int32_t kind, bool waits) {
  Place target, source;
  Stream* found;
  if (int32_t status = CheckCopy(device, bytes, kind)) return status;
  if (int32_t status = FindStream(device, stream, &found)) return status;
  if (bytes == 0) return kAnyopOk;
  const int32_t on_to = kind == kAnyopDeviceToHost
                            ? CheckHost(to, "the target")
                            : Inside(device, to, bytes, "the target", &target);
  if (on_to) return on_to;
  const int32_t on_from = kind == kAnyopHostToDevice
                              ? CheckHost(from, "the source")
                              : Inside(device, from, bytes, "the source", &source);
  if (on_from) return on_from;
  if (kind == kAnyopHostToDevice) return Write(found, target, from, bytes, waits);
  if (kind == kAnyopDeviceToHost) return Read(found, to, source, bytes, waits);
  return Move(found, target, source, bytes, waits);
}

int32_t ServiceQueue(Device* device, Handle* queue) {
  const std::lock_guard<std::mutex> lock(device->mutex);
  Code code = 0;
  Runtime& runtime = TheRuntime();
  if (!device->service)
    device->service = runtime.cl.CreateCommandQueue(runtime.context, device->id, 0, &code);
  *queue = device->service;
  return Check(code, "making a queue");
}

}  // namespace

int32_t Resolve(int32_t device, const void* memory, const char* what, Place* place) {
  uintptr_t begin;
  Block block;
  if (!TheBlocks().Find(memory, &begin, &block) || block.owner == kPinned)
    return RefuseOnDevice(kAnyopValueError,
                          "opencl: %s at %p is no memory of the device (foreign, or freed)", what,
                          memory);
  if (block.owner != device)
    return RefuseOnDevice(kAnyopValueError, "opencl: %s at %p is memory of device %d, not of %d",
                          what, memory, block.owner, device);
  place->buffer = block.buffer;
  place->offset = reinterpret_cast<uintptr_t>(memory) - begin;
  place->left = block.bytes - static_cast<int64_t>(place->offset);
  return kAnyopOk;
}

int32_t Allocate(int32_t index, int64_t bytes, void** memory) {
  Device* device;
  *memory = nullptr;
  if (int32_t status = CheckDevice(index, &device)) return status;
  if (int32_t status = CheckBytes("memory", bytes)) return status;
  if (bytes == 0) return kAnyopOk;
  if (static_cast<uint64_t>(bytes) > device->largest_bytes)
    return RefuseOnDevice(
        kAnyopOutOfMemory, "opencl: %lld bytes, and the largest buffer of %s has %llu",
        (long long)bytes, device->name.c_str(), (unsigned long long)device->largest_bytes);
  Runtime& runtime = TheRuntime();
  Code code = 0;
  Handle buffer = runtime.cl.CreateBuffer(runtime.context, kReadWrite, static_cast<size_t>(bytes),
                                          nullptr, &code);
  if (int32_t status = Check(code, "allocating memory")) return status;
  void* at =
      mmap(nullptr, Reserved(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) {
    runtime.cl.ReleaseMemObject(buffer);
    return RefuseOnDevice(kAnyopOutOfMemory, "opencl: no addresses for %lld bytes",
                          (long long)bytes);
  }
  TheBlocks().Keep(at, {buffer, bytes, index});
  device->used_bytes += bytes;
  *memory = at;
  return kAnyopOk;
}

// OpenCL keeps a buffer until what was put in with it is done.
int32_t Free(int32_t index, void* memory) {
  Device* device;
  Block block;
  if (!memory || Forked()) return kAnyopOk;
  if (int32_t status = CheckDevice(index, &device)) return status;
  if (int32_t status = Take(index, memory, &block)) return status;
  device->used_bytes -= block.bytes;
  munmap(memory, Reserved(block.bytes));
  return Check(TheRuntime().cl.ReleaseMemObject(block.buffer), "freeing memory");
}

int32_t AllocateOn(int32_t device, void* stream, int64_t bytes, void** memory) {
  Stream* found;
  *memory = nullptr;
  if (int32_t status = FindStream(device, stream, &found)) return status;
  return Allocate(device, bytes, memory);
}

int32_t FreeOn(int32_t device, void* stream, void* memory) {
  Stream* found;
  if (!memory || Forked()) return kAnyopOk;
  if (int32_t status = FindStream(device, stream, &found)) return status;
  return Free(device, memory);
}

int32_t AllocateHost(int32_t index, int64_t bytes, void** memory) {
  Device* device;
  Handle queue;
  *memory = nullptr;
  if (int32_t status = CheckDevice(index, &device)) return status;
  if (int32_t status = CheckBytes("pinned memory", bytes)) return status;
  if (bytes == 0) return kAnyopOk;
  if (int32_t status = ServiceQueue(device, &queue)) return status;
  Runtime& runtime = TheRuntime();
  Code code = 0;
  const auto size = static_cast<size_t>(bytes);
  Handle buffer =
      runtime.cl.CreateBuffer(runtime.context, kReadWrite | kAllocateHost, size, nullptr, &code);
  if (int32_t status = Check(code, "allocating pinned memory")) return status;
  void* at = runtime.cl.EnqueueMapBuffer(queue, buffer, 1, kMapReadWrite, 0, size, 0, nullptr,
                                         nullptr, &code);
  if (int32_t status = Check(code, "mapping pinned memory")) {
    runtime.cl.ReleaseMemObject(buffer);
    return status;
  }
  TheBlocks().Keep(at, {buffer, bytes, kPinned});
  *memory = at;
  return kAnyopOk;
}

int32_t FreeHost(int32_t index, void* memory) {
  Device* device;
  Handle queue;
  Block block;
  if (!memory || Forked()) return kAnyopOk;
  if (int32_t status = CheckDevice(index, &device)) return status;
  FinishAll();  // copies that use it as an address
  if (int32_t status = ServiceQueue(device, &queue)) return status;
  if (int32_t status = Take(kPinned, memory, &block)) return status;
  const Api& cl = TheRuntime().cl;
  Code code = cl.EnqueueUnmapMemObject(queue, block.buffer, memory, 0, nullptr, nullptr);
  if (!code) code = cl.Finish(queue);
  const Code released = cl.ReleaseMemObject(block.buffer);
  return Check(code ? code : released, "freeing pinned memory");
}

int32_t IsHost(const void* memory, int32_t* yes) {
  *yes = !Forked() && IsPinned(memory);
  return kAnyopOk;
}

int32_t DeviceOf(const void* memory, int32_t* device) {
  uintptr_t begin;
  Block block;
  if (Forked()) return CheckDevice(0);
  *device = TheBlocks().Find(memory, &begin, &block) ? block.owner : -1;
  return kAnyopOk;
}

// OpenCL does not say what is free: all but what this process took.
int32_t MemoryInfo(int32_t index, int64_t* free_bytes, int64_t* total_bytes) {
  Device* device;
  if (int32_t status = CheckDevice(index, &device)) return status;
  *total_bytes = static_cast<int64_t>(device->total_bytes);
  *free_bytes = std::max<int64_t>(*total_bytes - device->used_bytes, 1);
  return kAnyopOk;
}

int32_t Copy(int32_t device, void* to, const void* from, int64_t bytes, int32_t kind) {
  return CopyIn(device, nullptr, to, from, bytes, kind, true);
}

int32_t CopyOn(int32_t device, void* stream, void* to, const void* from, int64_t bytes,
               int32_t kind) {
  return CopyIn(device, stream, to, from, bytes, kind, false);
}

int32_t CopyBetweenOn(int32_t device, void* stream, void* to, int32_t to_device, const void* from,
                      int32_t from_device, int64_t bytes) {
  Place target, source;
  Stream* found;
  if (int32_t status = CheckCopy(device, bytes, kAnyopDeviceToDevice)) return status;
  if (int32_t status = CheckDevice(to_device)) return status;
  if (int32_t status = CheckDevice(from_device)) return status;
  if (int32_t status = FindStream(device, stream, &found)) return status;
  if (bytes == 0) return kAnyopOk;
  if (int32_t status = Inside(to_device, to, bytes, "the target", &target)) return status;
  if (int32_t status = Inside(from_device, from, bytes, "the source", &source)) return status;
  return Move(found, target, source, bytes, false);
}

int32_t SetOn(int32_t device, void* stream, void* memory, int32_t value, int64_t bytes) {
  Place place;
  Stream* found;
  if (int32_t status = FindStream(device, stream, &found)) return status;
  if (int32_t status = CheckBytes("a fill", bytes)) return status;
  if (bytes == 0) return kAnyopOk;
  if (int32_t status = Inside(device, memory, bytes, "the target", &place)) return status;
  const auto byte = static_cast<unsigned char>(value);
  return Check(Put(found,
                   [&](Handle queue) {
                     return TheRuntime().cl.EnqueueFillBuffer(
                         queue, place.buffer, &byte, 1, place.offset, static_cast<size_t>(bytes), 0,
                         nullptr, nullptr);
                   }),
               "filling memory");
}

}  // namespace anyop::opencl
