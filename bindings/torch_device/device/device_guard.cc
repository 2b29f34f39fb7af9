// SPDX-License-Identifier: Apache-2.0
// Tells torch of the device: allocators, current device, streams, events and hooks, each handed to
// the platform.
#include "device/device_guard.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstring>

#include "device/device_generator.h"
#include "kernels/copies.h"
#include "kernels/own_kernels.h"
#include "platform/platform.h"

namespace anyop::torch_device {

thread_local constinit DeviceIndex kernel_device = -1;
const Platform* platform = nullptr;

const Platform* Use() {
  if (!platform) [[unlikely]]
    ChoosePlatform("");
  return platform;
}

void CheckIndex(DeviceIndex index) {
  const int count = Use()->Count();
  TORCH_CHECK(index >= 0 && index < count, "there is no device ", Outer(index), ", only ",
              std::to_string(count), count == 1 ? " device" : " devices");
}

namespace {

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override { return Use()->Allocate(bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return Use()->RawDeleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    CopyBytes(to, from, bytes, Use()->Current());
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override { Use()->EmptyCache(); }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    Use()->RecordStream(data, stream.id(), stream.device_index());
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex index) override {
    return Use()->Stats(OrCurrent(index));
  }
  void resetAccumulatedStats(DeviceIndex index) override {
    Use()->ResetAccumulated(OrCurrent(index));
  }
  void resetPeakStats(DeviceIndex index) override { Use()->ResetPeak(OrCurrent(index)); }
#if ANYOP_TORCH_MINOR >= 10
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex index) override {
    return Use()->MemoryInfo(OrCurrent(index));
  }
#endif
};

class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override { return Use()->AllocatePinned(bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return Use()->PinnedDeleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  bool record_event(void* data, void* context, c10::Stream stream) override {
    return Use()->RecordPinned(data, context, stream.id(), stream.device_index());
  }
  void empty_cache() override { Use()->EmptyPinnedCache(); }
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

class Guard final : public c10::impl::DeviceGuardImplInterface {
  using Device = c10::Device;
  using Stream = c10::Stream;

 public:
  c10::DeviceType type() const override { return kOuter; }
  Device getDevice() const override { return Outer(Use()->Current()); }
  Device exchangeDevice(Device device) const override {
    const Device before = getDevice();
    if (device != before) setDevice(device);
    return before;
  }
  void setDevice(Device device) const override {
    TORCH_CHECK(device.type() == kOuter, "expected a device ", kOuter, ", found ", device);
    if (!device.has_index()) return;
    CheckIndex(device.index());
    Use()->SetCurrent(device.index());
  }
  void uncheckedSetDevice(Device device) const noexcept override {
    try {
      setDevice(device);
    } catch (const std::exception&) {  // a destructor that cannot say it
    }
  }

  Stream getStream(Device device) const override {
    const DeviceIndex index = OrCurrent(device.index());
    return Of(index, Use()->Stream(index));
  }
  Stream getDefaultStream(Device device) const override {
    return Stream(Stream::DEFAULT, Outer(OrCurrent(device.index())));
  }
  Stream getStreamFromGlobalPool(Device device, bool high_priority) const override {
    const DeviceIndex index = OrCurrent(device.index());
    return Of(index, Use()->PoolStream(index, high_priority));
  }
  Stream getNewStream(Device device, int priority) const override {
    const DeviceIndex index = OrCurrent(device.index());
    return Of(index, Use()->NewStream(index, priority));
  }
  Stream exchangeStream(Stream stream) const override {
    const DeviceIndex index = stream.device_index();
    return Of(index, Use()->ExchangeStream(index, stream.id()));
  }
  bool queryStream(const Stream& stream) const override {
    return Use()->QueryStream(stream.device_index(), stream.id());
  }
  void synchronizeStream(const Stream& stream) const override {
    Use()->SynchronizeStream(stream.device_index(), stream.id());
  }
  void synchronizeDevice(const DeviceIndex index) const override {
    Use()->Synchronize(OrCurrent(index));
  }
#if ANYOP_TORCH_MINOR >= 10
  void* getStreamNativeHandle(const Stream stream) const override {
    return Use()->StreamHandle(stream.device_index(), stream.id());
  }
#endif
  DeviceIndex deviceCount() const noexcept override { return Use()->Count(); }

  void record(void** event, const Stream& stream, const DeviceIndex index,
              const c10::EventFlag flag) const override {
    TORCH_CHECK(index < 0 || index == stream.device_index(), "an event of ", Outer(index),
                " cannot be recorded on a stream of ", stream.device());
    Use()->Record(event, stream.device_index(), stream.id(), flag);
  }
  void block(void* event, const Stream& stream) const override {
    if (event) Use()->Block(event, stream.device_index(), stream.id());
  }
  bool queryEvent(void* event) const override { return !event || Use()->QueryEvent(event); }
  void synchronizeEvent(void* event) const override {
    if (event) Use()->SynchronizeEvent(event);
  }
  double elapsedTime(void* begin, void* end, const DeviceIndex index) const override {
    TORCH_CHECK(begin && end, "both events must be recorded before their time is asked for");
    return Use()->ElapsedMs(begin, end, OrCurrent(index));
  }
  void destroyEvent(void* event, const DeviceIndex index) const noexcept override {
    if (event) Use()->DestroyEvent(event, index);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const Stream& stream) const override {
    Use()->RecordStream(data, stream.id(), stream.device_index());
  }

 private:
  static Stream Of(DeviceIndex index, c10::StreamId id) {
    return Stream(Stream::UNSAFE, Outer(index), id);
  }
};

PinnedAllocator* pinned_allocator() {
  static auto* made = new PinnedAllocator();
  return made;
}

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return Use()->Count() > 0; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return Use()->Count(); }
  DeviceIndex getCurrentDevice() const override { return Use()->Current(); }
  void setCurrentDevice(DeviceIndex index) const override {
    CheckIndex(index);
    Use()->SetCurrent(index);
  }
  DeviceIndex exchangeDevice(DeviceIndex index) const override {
    const DeviceIndex before = Use()->Current();
    if (index != before) setCurrentDevice(index);
    return before;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override {
    return index < 0 ? Use()->Current() : exchangeDevice(index);
  }
  const at::Generator& getDefaultGenerator(DeviceIndex index) const override {
    return DefaultGenerator(index);
  }
  at::Generator getNewGenerator(DeviceIndex index) const override { return NewGenerator(index); }
  c10::Device getDeviceFromPtr(void* data) const override { return Use()->DeviceOf(data); }
  bool isPinnedPtr(const void* data) const override { return Use()->IsPinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    ResizeStorage(storage, bytes);
  }
};

}  // namespace

c10::Allocator* DeviceAllocator() {
  static auto* made = new Allocator();
  return made;
}

bool IsTaken() {
  return c10::impl::hasDeviceGuardImpl(kOuter) || at::isPrivateUse1HooksRegistered();
}

void RegisterDevice() {
  static const Guard guard;
  static Hooks hooks;
  c10::impl::DeviceGuardImplRegistrar registrar(kOuter, &guard);
  c10::SetAllocator(kOuter, DeviceAllocator(), /*priority=*/1);
  at::setHostAllocator(kOuter, pinned_allocator());
  at::RegisterPrivateUse1HooksInterface(&hooks);
}

}  // namespace anyop::torch_device
