// SPDX-License-Identifier: Apache-2.0
// The platform of a plugin (include/anyop/device.h), "host" among them: its memory is cached, and
// where the CPU reaches it, torch's CPU kernels run on it in the calling thread.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/TensorBase.h>
#include <anyop/device_memory.h>

#include <cstring>
#include <mutex>

#include "platform/plugin_memory.h"

namespace anyop::torch_device {
namespace {

constexpr int kPoolStreams = 32;  // of a device and priority, as CUDA has them

void* Handle(c10::StreamId id) { return reinterpret_cast<void*>(id); }
c10::StreamId Id(void* stream) { return reinterpret_cast<c10::StreamId>(stream); }

void FreePinned(void* memory) { AnyopHostFree(plugin, memory); }

class Plugin final : public Platform {
 public:
  explicit Plugin(const AnyopDevice* device) : Platform(device->name, c10::DeviceType::CPU) {
    plugin = device;
    CheckPlugin(plugin->count(&count_));
    TORCH_CHECK(count_ <= kMaxDevices, name, ": has ", std::to_string(count_),
                " devices, more than ", std::to_string(kMaxDevices));
    if (count_ > 0) boxed = (Facts(0).flags & kAnyopDeviceHostAccessible) != 0;
    if (boxed) LendPluginMemoryToKernels();
  }

  DeviceIndex Count() const noexcept override { return static_cast<DeviceIndex>(count_); }
  DeviceIndex Current() const override { return plugin_device; }
  void SetCurrent(DeviceIndex index) const override { plugin_device = index; }
  DeviceProperties Properties(DeviceIndex index) const override {
    const auto facts = Facts(index);
    return {std::string(facts.name, strnlen(facts.name, sizeof facts.name)),
            facts.total_bytes,
            facts.compute_units,
            facts.major,
            facts.minor,
            (facts.flags & kAnyopDeviceHostAccessible) != 0};
  }
  std::pair<size_t, size_t> MemoryInfo(DeviceIndex index) const override {
    int64_t free_bytes = 0, total_bytes = 0;
    CheckPlugin(plugin->memory_info(index, &free_bytes, &total_bytes));
    return {free_bytes, total_bytes};
  }

  c10::DataPtr Allocate(size_t bytes) const override {
    return AllocateOnPlugin(plugin_device, bytes, Outer(plugin_device));
  }
  c10::DeleterFnPtr RawDeleter() const override { return PluginDeleter(plugin_device); }
  void EmptyCache() const override {
    for (DeviceIndex i = 0; i < Count(); ++i) CheckCore(AnyopDeviceEmptyCache(plugin, i));
  }
  void RecordStream(const c10::DataPtr& data, c10::StreamId stream,
                    DeviceIndex index) const override {
    if (data.get_deleter() == PluginDeleter(index))
      CheckCore(AnyopDeviceRecordStream(plugin, index, data.get(), Handle(stream)));
  }
  c10::CachingDeviceAllocator::DeviceStats Stats(DeviceIndex index) const override {
    return PluginStats(index);
  }
  void ResetAccumulated(DeviceIndex) const override {}
  void ResetPeak(DeviceIndex index) const override {
    CheckCore(AnyopDeviceResetPeak(plugin, index));
  }

  c10::DataPtr AllocatePinned(size_t bytes) const override {
    void* memory = nullptr;
    CheckCore(AnyopHostMalloc(plugin, plugin_device, static_cast<int64_t>(bytes), &memory));
    return {memory, memory, &FreePinned, c10::DeviceType::CPU};
  }
  c10::DeleterFnPtr PinnedDeleter() const override { return &FreePinned; }
  bool RecordPinned(void*, void* context, c10::StreamId stream, DeviceIndex index) const override {
    return AnyopHostRecordStream(plugin, context, index, Handle(stream)) == kAnyopOk;
  }
  bool IsPinned(const void* data) const override {
    int32_t yes = 0;
    return data && plugin->is_host(data, &yes) == kAnyopOk && yes;
  }
  void EmptyPinnedCache() const override { CheckCore(AnyopHostEmptyCache(plugin)); }
  c10::Device DeviceOf(void* data) const override {
    int32_t index = -1;
    if (plugin->device_of) CheckPlugin(plugin->device_of(data, &index));
    return Outer(static_cast<DeviceIndex>(index < 0 ? plugin_device : index));
  }

  c10::StreamId Stream(DeviceIndex index) const override { return Id(plugin_streams[index]); }
  c10::StreamId NewStream(DeviceIndex index, int priority) const override {
    return Id(FromPool(index, priority < 0));
  }
  c10::StreamId PoolStream(DeviceIndex index, bool high_priority) const override {
    return Id(FromPool(index, high_priority));
  }
  c10::StreamId ExchangeStream(DeviceIndex index, c10::StreamId stream) const override {
    return Id(std::exchange(plugin_streams[index], Handle(stream)));
  }
  void* StreamHandle(DeviceIndex, c10::StreamId stream) const override { return Handle(stream); }
  bool QueryStream(DeviceIndex index, c10::StreamId stream) const override {
    return IsIdle(index, Handle(stream));
  }
  void SynchronizeStream(DeviceIndex index, c10::StreamId stream) const override {
    CheckPlugin(plugin->synchronize_stream(index, Handle(stream)));
  }
  void Synchronize(DeviceIndex index) const override {
    CheckPlugin(plugin->synchronize_device(index));
  }

  // An event is the plugin's, made when it is first recorded.
  void Record(void** event, DeviceIndex index, c10::StreamId stream,
              c10::EventFlag flag) const override {
    const uint32_t flags = flag == c10::EventFlag::PYTORCH_DEFAULT ? kAnyopEventNoTiming : 0;
    if (!*event) CheckPlugin(plugin->create_event_with(index, flags, event));
    CheckPlugin(plugin->record_event(index, *event, Handle(stream)));
  }
  void Block(void* event, DeviceIndex index, c10::StreamId stream) const override {
    CheckPlugin(plugin->wait_event(index, Handle(stream), event));
  }
  bool QueryEvent(void* event) const override {
    int32_t done = 0;
    CheckPlugin(plugin->query_event(plugin_device, event, &done));
    return done != 0;
  }
  void SynchronizeEvent(void* event) const override {
    CheckPlugin(plugin->synchronize_event(plugin_device, event));
  }
  double ElapsedMs(void* begin, void* end, DeviceIndex index) const override {
    float milliseconds = 0;
    CheckPlugin(plugin->elapsed_ms(index, begin, end, &milliseconds));
    return milliseconds;
  }
  void DestroyEvent(void* event, DeviceIndex index) const noexcept override {
    plugin->destroy_event(index < 0 ? plugin_device : index, event);
  }

  at::Generator NewGenerator(DeviceIndex, bool) const override {
    return at::make_generator<at::CPUGeneratorImpl>();
  }

  void Drain(DeviceIndex index) const override {
    void* stream = plugin_streams[index];
    int32_t done = 0;
    const int32_t status = plugin->query_stream(index, stream, &done);
    if (status != kAnyopOk || !done) [[unlikely]]
      SynchronizeStream(index, Id(stream));
  }
  bool CopyLater(const at::TensorBase& to, DeviceIndex to_index, const at::TensorBase& from,
                 DeviceIndex from_index) const override;

 private:
  AnyopDeviceProperties Facts(DeviceIndex index) const {
    AnyopDeviceProperties facts = {};
    facts.size = sizeof facts;
    CheckPlugin(plugin->properties(index, &facts));
    return facts;
  }
  bool IsIdle(DeviceIndex index, void* stream) const {
    int32_t done = 0;
    CheckPlugin(plugin->query_stream(index, stream, &done));
    return done != 0;
  }
  void* FromPool(DeviceIndex index, bool high_priority) const;
  bool Lend(const at::TensorBase& tensor, DeviceIndex of, DeviceIndex index) const;

  int32_t count_ = 0;
  struct Pool {
    std::vector<void*> streams;
    size_t next = 0;
  };
  mutable std::mutex mutex_;
  mutable std::array<std::array<Pool, 2>, kMaxDevices> pools_;
};

void* Plugin::FromPool(DeviceIndex index, bool high_priority) const {
  const std::lock_guard lock(mutex_);
  Pool& pool = pools_[index][high_priority];
  const size_t place = pool.next++ % kPoolStreams;
  if (place >= pool.streams.size()) {
    void* made = nullptr;
    const auto facts = Facts(index);
    CheckPlugin(plugin->create_stream_with(
        index, high_priority ? facts.greatest_priority : facts.least_priority, &made));
    pool.streams.push_back(made);
  }
  return pool.streams[place];
}

// Where the memory is freed before the stream is done with it, nobody is given it until then.
// False: not memory that is known here. Nothing is kept for that, as what is destroyed on a
// stream's thread could wait for Python, which may wait for the stream.
bool Plugin::Lend(const at::TensorBase& tensor, DeviceIndex of, DeviceIndex index) const {
  const c10::DataPtr& data = tensor.storage().data_ptr();
  void* const stream = plugin_streams[index];
  if (of >= 0)
    return data.get_deleter() == PluginDeleter(of) &&
           AnyopDeviceRecordStream(plugin, of, data.get_context(), stream) == kAnyopOk;
  if (data.get_deleter() == &FreePinned)
    return AnyopHostRecordStream(plugin, data.get_context(), index, stream) == kAnyopOk;
  return !IsPinned(tensor.const_data_ptr());  // the device reads all else before copy_on returns
}

// Bytes that lie alike on both sides are copied by the device behind what its stream holds.
bool Plugin::CopyLater(const at::TensorBase& to, DeviceIndex to_index, const at::TensorBase& from,
                       DeviceIndex from_index) const {
  const bool alike = to.dtype() == from.dtype() && to.sizes() == from.sizes() &&
                     to.is_contiguous() && from.is_contiguous() && to.is_conj() == from.is_conj() &&
                     to.is_neg() == from.is_neg();
  if (!alike || to.numel() == 0 || (to_index >= 0 && from_index >= 0 && to_index != from_index))
    return false;
  const DeviceIndex index = to_index >= 0 ? to_index : from_index;
  if (!Lend(to, to_index, index) || !Lend(from, from_index, index)) return false;
  const int kind = from_index < 0 ? kAnyopHostToDevice
                   : to_index < 0 ? kAnyopDeviceToHost
                                  : kAnyopDeviceToDevice;
  CheckPlugin(plugin->copy_on(index, plugin_streams[index], to.mutable_data_ptr(),
                              from.const_data_ptr(), to.nbytes(), kind));
  return true;
}

}  // namespace

std::unique_ptr<Platform> PluginPlatform(const std::string& name) {
  return std::make_unique<Plugin>(OpenPlugin(name));
}

}  // namespace anyop::torch_device
