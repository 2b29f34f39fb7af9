// SPDX-License-Identifier: Apache-2.0
// The platform "cuda": memory, streams, events and generators are torch's own of CUDA, reached
// through c10's interfaces, so that one library serves builds of torch with and without CUDA.
#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>

#include "platform.h"

namespace anyop::torch_device {
namespace {

constexpr c10::DeviceType kCuda = c10::DeviceType::CUDA;
constexpr int64_t kCyclesOfMillisecond = 2'000'000;  // of a chip at 2 GHz; slower ones wait longer

class Cuda final : public Platform {
 public:
  Cuda() : Platform("cuda", kCuda), guard_(c10::impl::getDeviceGuardImpl(kCuda)) {
    at::globalContext().lazyInitDevice(kCuda);
    device_ = c10::getDeviceAllocator(kCuda);
    pinned_ = at::getHostAllocator(kCuda);
  }

  DeviceIndex Count() const noexcept override { return guard_->deviceCount(); }
  DeviceIndex Current() const override { return guard_->getDevice().index(); }
  void SetCurrent(DeviceIndex index) const override { guard_->setDevice(Inner(index)); }
  std::string Properties(DeviceIndex) const override { return "{}"; }  // torch.cuda has them
  std::pair<size_t, size_t> MemoryInfo(DeviceIndex) const override { return {0, 0}; }

  c10::DataPtr Allocate(size_t bytes) const override {
    c10::DataPtr data = device_->allocate(bytes);
    data.unsafe_set_device(Outer(data.device().index()));
    return data;
  }
  c10::DeleterFnPtr RawDeleter() const override { return device_->raw_deleter(); }
  void EmptyCache() const override { device_->emptyCache(); }
  void RecordStream(const c10::DataPtr& data, c10::StreamId stream,
                    DeviceIndex index) const override {
    guard_->recordDataPtrOnStream(data, Of(index, stream));
  }
  c10::CachingDeviceAllocator::DeviceStats Stats(DeviceIndex index) const override {
    return device_->getDeviceStats(index);
  }
  void ResetAccumulated(DeviceIndex index) const override { device_->resetAccumulatedStats(index); }
  void ResetPeak(DeviceIndex index) const override { device_->resetPeakStats(index); }

  c10::DataPtr AllocatePinned(size_t bytes) const override { return pinned_->allocate(bytes); }
  c10::DeleterFnPtr PinnedDeleter() const override { return pinned_->raw_deleter(); }
  bool RecordPinned(void* data, void* context, c10::StreamId stream,
                    DeviceIndex index) const override {
    return pinned_->record_event(data, context, Of(index, stream));
  }
  bool IsPinned(const void* data) const override { return Hooks().isPinnedPtr(data); }
  void EmptyPinnedCache() const override { pinned_->empty_cache(); }
  c10::Device DeviceOf(void* data) const override {
    return Outer(Hooks().getDeviceFromPtr(data).index());
  }

  c10::StreamId Stream(DeviceIndex index) const override {
    return guard_->getStream(Inner(index)).id();
  }
  c10::StreamId NewStream(DeviceIndex index, int priority) const override {
    return guard_->getNewStream(Inner(index), priority).id();
  }
  c10::StreamId PoolStream(DeviceIndex index, bool high_priority) const override {
    return guard_->getStreamFromGlobalPool(Inner(index), high_priority).id();
  }
  c10::StreamId ExchangeStream(DeviceIndex index, c10::StreamId stream) const override {
    return guard_->exchangeStream(Of(index, stream)).id();
  }
  void* StreamHandle(DeviceIndex index, c10::StreamId stream) const override {
#if ANYOP_TORCH_MINOR >= 10
    return guard_->getStreamNativeHandle(Of(index, stream));
#else
    TORCH_CHECK_NOT_IMPLEMENTED(false, "this torch does not tell a stream's handle");
#endif
  }
  bool QueryStream(DeviceIndex index, c10::StreamId stream) const override {
    return guard_->queryStream(Of(index, stream));
  }
  void SynchronizeStream(DeviceIndex index, c10::StreamId stream) const override {
    guard_->synchronizeStream(Of(index, stream));
  }
  void Synchronize(DeviceIndex index) const override { guard_->synchronizeDevice(index); }
  void Sleep(int64_t milliseconds) const override {
    // What torch.cuda._sleep calls: a kernel that counts cycles.
    static const auto sleep = [] {
      void* library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
      return reinterpret_cast<void (*)(int64_t)>(library ? dlsym(library, "_ZN2at4cuda5sleepEl")
                                                         : nullptr);
    }();
    TORCH_CHECK_NOT_IMPLEMENTED(sleep, "this torch cannot hold a stream of CUDA up");
    sleep(milliseconds * kCyclesOfMillisecond);
  }

  void Record(void** event, DeviceIndex index, c10::StreamId stream,
              c10::EventFlag flag) const override {
    guard_->record(event, Of(index, stream), index, flag);
  }
  void Block(void* event, DeviceIndex index, c10::StreamId stream) const override {
    guard_->block(event, Of(index, stream));
  }
  bool QueryEvent(void* event) const override { return guard_->queryEvent(event); }
  void SynchronizeEvent(void* event) const override { guard_->synchronizeEvent(event); }
  double ElapsedMs(void* begin, void* end, DeviceIndex index) const override {
    return guard_->elapsedTime(begin, end, index);
  }
  void DestroyEvent(void* event, DeviceIndex index) const noexcept override {
    guard_->destroyEvent(event, index);
  }

  at::Generator NewGenerator(DeviceIndex index, bool is_default) const override {
    return is_default ? at::globalContext().defaultGenerator(Inner(index))
                      : Hooks().getNewGenerator(index);
  }
  void Drain(DeviceIndex) const override {}  // kernels are put on the stream
  bool CopyLater(const at::TensorBase&, DeviceIndex, const at::TensorBase&,
                 DeviceIndex) const override {
    return false;  // torch's copy_ does that itself
  }

 private:
  static const at::AcceleratorHooksInterface& Hooks() {
    return at::globalContext().getAcceleratorHooksInterface(kCuda);
  }
  static c10::Stream Of(DeviceIndex index, c10::StreamId stream) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kCuda, index), stream);
  }

  const c10::impl::DeviceGuardImplInterface* guard_;
  c10::DeviceAllocator* device_;
  at::HostAllocator* pinned_;
};

}  // namespace

std::unique_ptr<Platform> CudaPlatform() {
  TORCH_CHECK(at::globalContext().hasCUDA(),
              "the platform cuda needs a torch with CUDA, and a CUDA device");
  return std::make_unique<Cuda>();
}

}  // namespace anyop::torch_device
