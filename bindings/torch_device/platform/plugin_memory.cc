// SPDX-License-Identifier: Apache-2.0
// A plugin's memory, cached by the core, in torch's terms.
#include "platform/plugin_memory.h"

#include <anyop/anyop.h>
#include <anyop/device_memory.h>
#include <c10/core/CPUAllocator.h>

namespace anyop::torch_device {

const AnyopDevice* plugin = nullptr;
thread_local constinit DeviceIndex plugin_device = 0;
thread_local constinit std::array<void*, kMaxDevices> plugin_streams{};

namespace {

void ThrowStatus(int32_t status, const char* text) {
  if (status == kAnyopOutOfMemory) TORCH_CHECK_WITH(OutOfMemoryError, false, text);
  if (status == kAnyopNotImplemented) TORCH_CHECK_NOT_IMPLEMENTED(false, text);
  TORCH_CHECK(false, text);
}

template <int kIndex>
void FreeOnPlugin(void* memory) {
  AnyopDeviceFree(plugin, kIndex, memory);
}
template <int... kIndex>
constexpr auto MakeDeleters(std::integer_sequence<int, kIndex...>) {
  return std::array<c10::DeleterFnPtr, sizeof...(kIndex)>{&FreeOnPlugin<kIndex>...};
}
constexpr auto kDeleters = MakeDeleters(std::make_integer_sequence<int, kMaxDevices>());

// In the place of torch's allocator for the CPU: what is no kernel's for the device is torch's as
// before.
class KernelAllocator final : public c10::Allocator {
 public:
  explicit KernelAllocator(c10::Allocator* torch) : torch_(torch) {}
  c10::DataPtr allocate(size_t bytes) override {
    const DeviceIndex index = kernel_device;
    if (index < 0) [[likely]]
      return torch_->allocate(bytes);
    return AllocateOnPlugin(index, bytes, c10::DeviceType::CPU);
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

c10::CachingAllocator::Stat StatOf(int64_t now, int64_t peak, int64_t made, int64_t freed) {
  c10::CachingAllocator::Stat stat;
  stat.current = now, stat.peak = peak, stat.allocated = made, stat.freed = freed;
  return stat;
}

}  // namespace

void CheckPlugin(int32_t status) {
  if (status != kAnyopOk) [[unlikely]]
    ThrowStatus(status, plugin->last_error());
}

void CheckCore(int32_t status) {
  if (status != kAnyopOk) [[unlikely]]
    ThrowStatus(status, AnyopLastError());
}

c10::DataPtr AllocateOnPlugin(DeviceIndex index, size_t bytes, c10::Device label) {
  void* memory = nullptr;
  CheckCore(AnyopDeviceMalloc(plugin, index, plugin_streams[index], static_cast<int64_t>(bytes),
                              &memory));
  return {memory, memory, kDeleters[index], label};
}

c10::DeleterFnPtr PluginDeleter(DeviceIndex index) { return kDeleters[index]; }

void LendPluginMemoryToKernels() {
  c10::SetCPUAllocator(new KernelAllocator(c10::GetCPUAllocator()), /*priority=*/255);
}

c10::CachingDeviceAllocator::DeviceStats PluginStats(DeviceIndex index) {
  AnyopMemoryStats f = {};
  f.size = sizeof f;
  CheckCore(AnyopDeviceMemoryStats(plugin, index, &f));
  c10::CachingDeviceAllocator::DeviceStats stats;
  const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
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

}  // namespace anyop::torch_device
