// SPDX-License-Identifier: Apache-2.0
// The platform of a plugin (include/anyop/device.h), "host" among them: its memory is cached, and
// where the CPU reaches it, torch's CPU kernels run on it in the calling thread.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/TensorBase.h>
#include <anyop/anyop.h>
#include <anyop/device.h>
#include <anyop/device_memory.h>
#include <c10/core/CPUAllocator.h>

#include <array>
#include <chrono>
#include <mutex>
#include <thread>

#include "platform.h"

namespace anyop::torch_device {
namespace {

constexpr int kPoolStreams = 32;  // of a device and priority, as CUDA has them

thread_local DeviceIndex current_device = 0;
thread_local std::array<void*, kMaxDevices> current_streams{};

void Check(int32_t status, const char* text) {
  if (status == kAnyopOk) return;
  if (status == kAnyopOutOfMemory) TORCH_CHECK_WITH(OutOfMemoryError, false, text);
  if (status == kAnyopNotImplemented) TORCH_CHECK_NOT_IMPLEMENTED(false, text);
  TORCH_CHECK(false, text);
}

void* Handle(c10::StreamId id) { return reinterpret_cast<void*>(id); }
c10::StreamId Id(void* stream) { return reinterpret_cast<c10::StreamId>(stream); }

const AnyopDevice* plugin = nullptr;  // what deleters use

template <int kIndex>
void Free(void* memory) {
  AnyopDeviceFree(plugin, kIndex, memory);
}
template <int... kIndex>
constexpr auto MakeDeleters(std::integer_sequence<int, kIndex...>) {
  return std::array<c10::DeleterFnPtr, sizeof...(kIndex)>{&Free<kIndex>...};
}
constexpr auto kDeleters = MakeDeleters(std::make_integer_sequence<int, kMaxDevices>());

c10::DataPtr AllocateFrom(DeviceIndex index, size_t bytes, c10::Device label) {
  void* memory = nullptr;
  const int32_t status = AnyopDeviceMalloc(plugin, index, current_streams[index],
                                           static_cast<int64_t>(bytes), &memory);
  if (status != kAnyopOk) [[unlikely]]
    Check(status, AnyopLastError());
  return {memory, memory, kDeleters[index], label};
}

// In the place of torch's allocator for the CPU: what kernels make while they run for the device is
// the device's memory, all else is torch's as before.
class KernelAllocator final : public c10::Allocator {
 public:
  explicit KernelAllocator(c10::Allocator* torch) : torch_(torch) {}
  c10::DataPtr allocate(size_t bytes) override {
    const DeviceIndex index = kernel_device;
    if (index < 0) [[likely]]
      return torch_->allocate(bytes);
    return AllocateFrom(index, bytes, c10::DeviceType::CPU);
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return kernel_device < 0 ? torch_->raw_deleter() : kDeleters[kernel_device];
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    torch_->copy_data(to, from, bytes);
  }

 private:
  c10::Allocator* torch_;
};

void FreePinned(void* memory) { AnyopHostFree(plugin, memory); }

c10::CachingAllocator::Stat StatOf(int64_t now, int64_t peak, int64_t made, int64_t freed) {
  c10::CachingAllocator::Stat stat;
  stat.current = now, stat.peak = peak, stat.allocated = made, stat.freed = freed;
  return stat;
}

class Plugin final : public Platform {
 public:
  Plugin(const std::string& name, const AnyopDevice* device)
      : Platform(name, c10::DeviceType::CPU), device_(device) {
    plugin = device;
    Check(device->count(&count_));
    TORCH_CHECK(count_ <= kMaxDevices, name, ": has ", std::to_string(count_),
                " devices, more than ", std::to_string(kMaxDevices));
    if (count_ > 0) boxed = (Facts(0).flags & kAnyopDeviceHostAccessible) != 0;
    if (boxed) c10::SetCPUAllocator(new KernelAllocator(c10::GetCPUAllocator()), /*priority=*/255);
  }

  DeviceIndex Count() const noexcept override { return static_cast<DeviceIndex>(count_); }
  DeviceIndex Current() const override { return current_device; }
  void SetCurrent(DeviceIndex index) const override { current_device = index; }
  std::string Properties(DeviceIndex index) const override {
    const auto facts = Facts(index);
    return c10::str("{\"name\": \"", facts.name, "\", \"total_memory\": ", facts.total_bytes,
                    ", \"multi_processor_count\": ", facts.compute_units,
                    ", \"major\": ", facts.major, ", \"minor\": ", facts.minor,
                    ", \"host_accessible\": ",
                    facts.flags & kAnyopDeviceHostAccessible ? "true" : "false", "}");
  }
  std::pair<size_t, size_t> MemoryInfo(DeviceIndex index) const override {
    int64_t free_bytes = 0, total_bytes = 0;
    Check(device_->memory_info(index, &free_bytes, &total_bytes));
    return {free_bytes, total_bytes};
  }

  c10::DataPtr Allocate(size_t bytes) const override {
    return AllocateFrom(current_device, bytes, Outer(current_device));
  }
  c10::DeleterFnPtr RawDeleter() const override { return kDeleters[current_device]; }
  void EmptyCache() const override {
    for (DeviceIndex i = 0; i < Count(); ++i) CheckCore(AnyopDeviceEmptyCache(device_, i));
  }
  void RecordStream(const c10::DataPtr& data, c10::StreamId stream,
                    DeviceIndex index) const override {
    if (data.get_deleter() == kDeleters[index])
      CheckCore(AnyopDeviceRecordStream(device_, index, data.get(), Handle(stream)));
  }
  c10::CachingDeviceAllocator::DeviceStats Stats(DeviceIndex index) const override;
  void ResetAccumulated(DeviceIndex) const override {}
  void ResetPeak(DeviceIndex index) const override {
    CheckCore(AnyopDeviceResetPeak(device_, index));
  }

  c10::DataPtr AllocatePinned(size_t bytes) const override {
    void* memory = nullptr;
    CheckCore(AnyopHostMalloc(device_, current_device, static_cast<int64_t>(bytes), &memory));
    return {memory, memory, &FreePinned, c10::DeviceType::CPU};
  }
  c10::DeleterFnPtr PinnedDeleter() const override { return &FreePinned; }
  bool RecordPinned(void*, void* context, c10::StreamId stream, DeviceIndex index) const override {
    return AnyopHostRecordStream(device_, context, index, Handle(stream)) == kAnyopOk;
  }
  bool IsPinned(const void* data) const override {
    int32_t yes = 0;
    return data && device_->is_host(data, &yes) == kAnyopOk && yes;
  }
  void EmptyPinnedCache() const override { CheckCore(AnyopHostEmptyCache(device_)); }
  c10::Device DeviceOf(void* data) const override {
    int32_t index = -1;
    if (device_->device_of) Check(device_->device_of(data, &index));
    return Outer(static_cast<DeviceIndex>(index < 0 ? current_device : index));
  }

  c10::StreamId Stream(DeviceIndex index) const override { return Id(current_streams[index]); }
  c10::StreamId NewStream(DeviceIndex index, int priority) const override {
    return Id(FromPool(index, priority < 0));
  }
  c10::StreamId PoolStream(DeviceIndex index, bool high_priority) const override {
    return Id(FromPool(index, high_priority));
  }
  c10::StreamId ExchangeStream(DeviceIndex index, c10::StreamId stream) const override {
    return Id(std::exchange(current_streams[index], Handle(stream)));
  }
  void* StreamHandle(DeviceIndex, c10::StreamId stream) const override { return Handle(stream); }
  bool QueryStream(DeviceIndex index, c10::StreamId stream) const override {
    return IsIdle(index, Handle(stream));
  }
  void SynchronizeStream(DeviceIndex index, c10::StreamId stream) const override {
    Check(device_->synchronize_stream(index, Handle(stream)));
  }
  void Synchronize(DeviceIndex index) const override { Check(device_->synchronize_device(index)); }
  void Sleep(int64_t milliseconds) const override {
    const auto sleep = [](void* context) {
      std::this_thread::sleep_for(std::chrono::milliseconds(reinterpret_cast<intptr_t>(context)));
    };
    Check(device_->launch_host(current_device, current_streams[current_device], sleep,
                               reinterpret_cast<void*>(milliseconds)));
  }

  // An event is the plugin's, made when it is first recorded.
  void Record(void** event, DeviceIndex index, c10::StreamId stream,
              c10::EventFlag flag) const override {
    const uint32_t flags = flag == c10::EventFlag::PYTORCH_DEFAULT ? kAnyopEventNoTiming : 0;
    if (!*event) Check(device_->create_event_with(index, flags, event));
    Check(device_->record_event(index, *event, Handle(stream)));
  }
  void Block(void* event, DeviceIndex index, c10::StreamId stream) const override {
    Check(device_->wait_event(index, Handle(stream), event));
  }
  bool QueryEvent(void* event) const override {
    int32_t done = 0;
    Check(device_->query_event(current_device, event, &done));
    return done != 0;
  }
  void SynchronizeEvent(void* event) const override {
    Check(device_->synchronize_event(current_device, event));
  }
  double ElapsedMs(void* begin, void* end, DeviceIndex index) const override {
    float milliseconds = 0;
    Check(device_->elapsed_ms(index, begin, end, &milliseconds));
    return milliseconds;
  }
  void DestroyEvent(void* event, DeviceIndex index) const noexcept override {
    device_->destroy_event(index < 0 ? current_device : index, event);
  }

  at::Generator NewGenerator(DeviceIndex, bool) const override {
    return at::make_generator<at::CPUGeneratorImpl>();
  }

  void Drain(DeviceIndex index) const override {
    void* stream = current_streams[index];
    int32_t done = 0;
    const int32_t status = device_->query_stream(index, stream, &done);
    if (status != kAnyopOk || !done) [[unlikely]]
      SynchronizeStream(index, Id(stream));
  }
  bool CopyLater(const at::TensorBase& to, DeviceIndex to_index, const at::TensorBase& from,
                 DeviceIndex from_index) const override;

 private:
  void Check(int32_t status) const {
    if (status != kAnyopOk) [[unlikely]]
      torch_device::Check(status, device_->last_error());
  }
  static void CheckCore(int32_t status) {
    if (status != kAnyopOk) [[unlikely]]
      torch_device::Check(status, AnyopLastError());
  }
  AnyopDeviceProperties Facts(DeviceIndex index) const {
    AnyopDeviceProperties facts{sizeof(AnyopDeviceProperties)};
    Check(device_->properties(index, &facts));
    return facts;
  }
  bool IsIdle(DeviceIndex index, void* stream) const {
    int32_t done = 0;
    Check(device_->query_stream(index, stream, &done));
    return done != 0;
  }
  void* FromPool(DeviceIndex index, bool high_priority) const;

  const AnyopDevice* device_;
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
    Check(device_->create_stream_with(
        index, high_priority ? facts.greatest_priority : facts.least_priority, &made));
    pool.streams.push_back(made);
  }
  return pool.streams[place];
}

c10::CachingDeviceAllocator::DeviceStats Plugin::Stats(DeviceIndex index) const {
  AnyopMemoryStats found{sizeof(AnyopMemoryStats)};
  CheckCore(AnyopDeviceMemoryStats(device_, index, &found));
  c10::CachingDeviceAllocator::DeviceStats stats;
  const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto& f = found;
  stats.allocation[all] = StatOf(f.blocks, f.blocks_peak, f.allocations, f.frees);
  stats.segment[all] = StatOf(f.segments, f.segments_peak, f.segment_allocations, f.segment_frees);
  stats.active[all] = stats.allocation[all];
  stats.allocated_bytes[all] = StatOf(f.allocated_bytes, f.allocated_bytes_peak, 0, 0);
  stats.requested_bytes[all] = stats.allocated_bytes[all];
  stats.active_bytes[all] = StatOf(f.active_bytes, f.active_bytes_peak, 0, 0);
  stats.reserved_bytes[all] = StatOf(f.reserved_bytes, f.reserved_bytes_peak, 0, 0);
  stats.num_alloc_retries = f.retries;
  stats.num_ooms = f.out_of_memory;
  return stats;
}

// Bytes that lie alike on both sides are copied by the device behind what its stream holds; both
// memories live until then.
bool Plugin::CopyLater(const at::TensorBase& to, DeviceIndex to_index, const at::TensorBase& from,
                       DeviceIndex from_index) const {
  const bool alike = to.dtype() == from.dtype() && to.sizes() == from.sizes() &&
                     to.is_contiguous() && from.is_contiguous() && to.is_conj() == from.is_conj() &&
                     to.is_neg() == from.is_neg();
  if (!alike || to.numel() == 0 || (to_index >= 0 && from_index >= 0 && to_index != from_index))
    return false;
  const DeviceIndex index = to_index >= 0 ? to_index : from_index;
  const auto foreign = [&](const at::TensorBase& tensor,
                           DeviceIndex of) {  // memory lent from the CPU
    return of >= 0 && tensor.storage().data_ptr().get_deleter() != kDeleters[of];
  };
  if (foreign(to, to_index) || foreign(from, from_index)) return false;
  void* stream = current_streams[index];
  const int kind = from_index < 0 ? kAnyopHostToDevice
                   : to_index < 0 ? kAnyopDeviceToHost
                                  : kAnyopDeviceToDevice;
  auto* keep = new std::pair<c10::Storage, c10::Storage>(to.storage(), from.storage());
  const int32_t status = device_->copy_on(index, stream, to.mutable_data_ptr(),
                                          from.const_data_ptr(), to.nbytes(), kind);
  if (status == kAnyopOk) {
    Check(device_->launch_host(
        index, stream,
        [](void* held) { delete static_cast<std::pair<c10::Storage, c10::Storage>*>(held); },
        keep));
    return true;
  }
  delete keep;
  Check(status);
  return false;
}

}  // namespace

std::unique_ptr<Platform> PluginPlatform(const std::string& name) {
  const AnyopDevice* device = nullptr;
  const bool is_path = name.find('/') != std::string::npos;
  const int32_t status =
      is_path ? AnyopLoadDevice(name.c_str(), &device)
              : ((device = AnyopFindDeviceByName(name.c_str())) ? kAnyopOk : kAnyopValueError);
  Check(status, AnyopLastError());
  Check(AnyopUseDevice(device), AnyopLastError());
  return std::make_unique<Plugin>(device->name, device);
}

}  // namespace anyop::torch_device
