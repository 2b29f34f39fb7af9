// SPDX-License-Identifier: Apache-2.0
// What lies below the device: memory, streams, events and random numbers of one kind of machine,
// and whose kernels of torch's run on its memory (the inner device).
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/Generator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>

namespace anyop::torch_device {

using c10::DeviceIndex;
constexpr c10::DeviceType kOuter = c10::DeviceType::PrivateUse1;
constexpr DeviceIndex kMaxDevices = 64;

// name, total_memory, multi_processor_count, major, minor, host_accessible
using DeviceProperties = std::tuple<std::string, int64_t, int64_t, int64_t, int64_t, bool>;

// Streams are torch's ids, 0 the default stream; what they mean is the platform's. Functions throw
// c10::Error unless they say otherwise.
class Platform {
 public:
  Platform(std::string name, c10::DeviceType inner)
      : name(std::move(name)),
        inner(inner),
        inner_keys(inner == c10::DeviceType::CUDA ? c10::DispatchKey::CUDA
                                                  : c10::DispatchKey::CPU) {}
  virtual ~Platform() = default;

  const std::string name;
  const c10::DeviceType inner;
  const c10::DispatchKeySet inner_keys;
  // Whether torch's kernels of the inner device may touch the memory.
  bool boxed = true;

  c10::Device Inner(DeviceIndex index) const {
    return inner == c10::DeviceType::CPU ? c10::Device(inner) : c10::Device(inner, index);
  }

  virtual DeviceIndex Count() const noexcept = 0;
  virtual DeviceIndex Current() const = 0;
  virtual void SetCurrent(DeviceIndex index) const = 0;
  virtual DeviceProperties Properties(DeviceIndex index) const = 0;
  virtual std::pair<size_t, size_t> MemoryInfo(DeviceIndex index) const = 0;  // free, total

  // Memory of the current device, in the order of its current stream; labelled as the device's.
  virtual c10::DataPtr Allocate(size_t bytes) const = 0;
  virtual c10::DeleterFnPtr RawDeleter() const = 0;
  virtual void EmptyCache() const = 0;
  virtual void RecordStream(const c10::DataPtr& data, c10::StreamId stream,
                            DeviceIndex index) const = 0;
  virtual c10::CachingDeviceAllocator::DeviceStats Stats(DeviceIndex index) const = 0;
  virtual void ResetAccumulated(DeviceIndex index) const = 0;
  virtual void ResetPeak(DeviceIndex index) const = 0;

  virtual c10::DataPtr AllocatePinned(size_t bytes) const = 0;
  virtual c10::DeleterFnPtr PinnedDeleter() const = 0;
  virtual bool RecordPinned(void* data, void* context, c10::StreamId stream,
                            DeviceIndex index) const = 0;
  virtual bool IsPinned(const void* data) const = 0;
  virtual void EmptyPinnedCache() const = 0;
  virtual c10::Device DeviceOf(void* data) const = 0;

  virtual c10::StreamId Stream(DeviceIndex index) const = 0;  // the current one
  virtual c10::StreamId NewStream(DeviceIndex index, int priority) const = 0;
  virtual c10::StreamId PoolStream(DeviceIndex index, bool high_priority) const = 0;
  virtual c10::StreamId ExchangeStream(DeviceIndex index, c10::StreamId stream) const = 0;
  virtual void* StreamHandle(DeviceIndex index, c10::StreamId stream) const = 0;
  virtual bool QueryStream(DeviceIndex index, c10::StreamId stream) const = 0;
  virtual void SynchronizeStream(DeviceIndex index, c10::StreamId stream) const = 0;
  virtual void Synchronize(DeviceIndex index) const = 0;

  virtual void Record(void** event, DeviceIndex index, c10::StreamId stream,
                      c10::EventFlag flag) const = 0;
  virtual void Block(void* event, DeviceIndex index, c10::StreamId stream) const = 0;
  virtual bool QueryEvent(void* event) const = 0;
  virtual void SynchronizeEvent(void* event) const = 0;
  virtual double ElapsedMs(void* begin, void* end, DeviceIndex index) const = 0;
  virtual void DestroyEvent(void* event, DeviceIndex index) const noexcept = 0;

  // A generator of the inner device; the default one of a device keeps its seed for the process.
  virtual at::Generator NewGenerator(DeviceIndex index, bool is_default) const = 0;

  // Before a kernel of the inner device reads or writes memory of this device in the calling
  // thread: waits for the current stream where the platform has no other order.
  virtual void Drain(DeviceIndex index) const = 0;
  // dst.copy_(src) of inner tensors that the stream may do later; false: not possible, copy now.
  virtual bool CopyLater(const at::TensorBase& to, DeviceIndex to_index, const at::TensorBase& from,
                         DeviceIndex from_index) const = 0;
};

// While a kernel of the inner device runs in this thread: on memory of which device, else -1. What
// it allocates is that device's.
extern thread_local constinit DeviceIndex kernel_device;

// Null until one is chosen.
extern const Platform* platform;
// The platform; the default one is chosen where none was.
const Platform* Use();
// By name; "": what ANYOP_DEVICE_PLATFORM says, or cuda where torch has a CUDA device, else host.
// Throws when another one is in use.
void ChoosePlatform(const std::string& name);

inline c10::Device Outer(DeviceIndex index) { return c10::Device(kOuter, index); }
inline DeviceIndex OrCurrent(DeviceIndex index) { return index < 0 ? Use()->Current() : index; }

// Throws unless there is such a device.
void CheckIndex(DeviceIndex index);

std::unique_ptr<Platform> CudaPlatform();
std::unique_ptr<Platform> PluginPlatform(const std::string& name);

}  // namespace anyop::torch_device
