// SPDX-License-Identifier: Apache-2.0
// The platform "cuda": memory, streams, events and generators are torch's own of CUDA, reached
// through c10's interfaces, so that one library serves builds of torch with and without CUDA. CUDA
// starts at the device's first use: a process that has only loaded the device may fork.
#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pthread.h>

#include <atomic>

#include "platform/platform.h"

namespace anyop::torch_device {
namespace {

constexpr c10::DeviceType kCuda = c10::DeviceType::CUDA;

// To count devices is to load the driver, and that does not outlive a fork either.
enum class CudaState { kUnused, kCounted, kReady, kForked };
std::atomic<CudaState> cuda_state{CudaState::kUnused};

void CountCuda() noexcept {
  static const int watched = pthread_atfork(nullptr, nullptr, [] {
    if (cuda_state != CudaState::kUnused) cuda_state = CudaState::kForked;
  });
  (void)watched;
  CudaState unused = CudaState::kUnused;
  cuda_state.compare_exchange_strong(unused, CudaState::kCounted);
}

void StartCuda() {
  CountCuda();
  TORCH_CHECK(cuda_state != CudaState::kForked,
              "cuda: the process was forked after the device's first use, and a child cannot use "
              "it; start the child with 'spawn', or use the device only after the fork");
  at::globalContext().lazyInitDevice(kCuda);
  cuda_state = CudaState::kReady;
}

bool IsCudaReady() noexcept {
  return cuda_state.load(std::memory_order_relaxed) == CudaState::kReady;
}

void NeedCuda() {
  if (!IsCudaReady()) [[unlikely]]
    StartCuda();
}

class Cuda final : public Platform {
 public:
  Cuda() : Platform("cuda", kCuda), impl_(c10::impl::getDeviceGuardImpl(kCuda)) {}

  DeviceIndex Count() const noexcept override {
    if (cuda_state.load(std::memory_order_relaxed) == CudaState::kUnused) CountCuda();
    return impl_->deviceCount();  // asked once, torch keeps the number
  }
  DeviceIndex Current() const override { return Guard().getDevice().index(); }
  void SetCurrent(DeviceIndex index) const override { Guard().setDevice(Inner(index)); }
  DeviceProperties Properties(DeviceIndex) const override { return {}; }  // torch.cuda has them
  std::pair<size_t, size_t> MemoryInfo(DeviceIndex index) const override {
#if ANYOP_TORCH_MINOR >= 10
    return Memory().getMemoryInfo(index);
#else
    TORCH_CHECK_NOT_IMPLEMENTED(false, "of this torch, torch.cuda.mem_get_info has that");
#endif
  }

  c10::DataPtr Allocate(size_t bytes) const override {
    c10::DataPtr data = Memory().allocate(bytes);
    data.unsafe_set_device(Outer(data.device().index()));
    return data;
  }
  c10::DeleterFnPtr RawDeleter() const override { return Memory().raw_deleter(); }
  void EmptyCache() const override {
    if (IsCudaReady()) Memory().emptyCache();
  }
  void RecordStream(const c10::DataPtr& data, c10::StreamId stream,
                    DeviceIndex index) const override {
    Guard().recordDataPtrOnStream(data, Of(index, stream));
  }
  c10::CachingDeviceAllocator::DeviceStats Stats(DeviceIndex index) const override {
    return Memory().getDeviceStats(index);
  }
  void ResetAccumulated(DeviceIndex index) const override { Memory().resetAccumulatedStats(index); }
  void ResetPeak(DeviceIndex index) const override { Memory().resetPeakStats(index); }

  c10::DataPtr AllocatePinned(size_t bytes) const override { return Pinned().allocate(bytes); }
  c10::DeleterFnPtr PinnedDeleter() const override { return Pinned().raw_deleter(); }
  bool RecordPinned(void* data, void* context, c10::StreamId stream,
                    DeviceIndex index) const override {
    return Pinned().record_event(data, context, Of(index, stream));
  }
  bool IsPinned(const void* data) const override {
    if (!IsCudaReady()) CountCuda();
    return cuda_state != CudaState::kForked && Hooks().isPinnedPtr(data);
  }
  void EmptyPinnedCache() const override {
    if (IsCudaReady()) Pinned().empty_cache();
  }
  c10::Device DeviceOf(void* data) const override {
    return Outer(Hooks().getDeviceFromPtr(data).index());
  }

  c10::StreamId Stream(DeviceIndex index) const override {
    return Guard().getStream(Inner(index)).id();
  }
  c10::StreamId NewStream(DeviceIndex index, int priority) const override {
    return Guard().getNewStream(Inner(index), priority).id();
  }
  c10::StreamId PoolStream(DeviceIndex index, bool high_priority) const override {
    return Guard().getStreamFromGlobalPool(Inner(index), high_priority).id();
  }
  c10::StreamId ExchangeStream(DeviceIndex index, c10::StreamId stream) const override {
    return Guard().exchangeStream(Of(index, stream)).id();
  }
  void* StreamHandle(DeviceIndex index, c10::StreamId stream) const override {
#if ANYOP_TORCH_MINOR >= 10
    return Guard().getStreamNativeHandle(Of(index, stream));
#else
    TORCH_CHECK_NOT_IMPLEMENTED(false, "this torch does not tell a stream's handle");
#endif
  }
  bool QueryStream(DeviceIndex index, c10::StreamId stream) const override {
    return Guard().queryStream(Of(index, stream));
  }
  void SynchronizeStream(DeviceIndex index, c10::StreamId stream) const override {
    Guard().synchronizeStream(Of(index, stream));
  }
  void Synchronize(DeviceIndex index) const override { Guard().synchronizeDevice(index); }

  void Record(void** event, DeviceIndex index, c10::StreamId stream,
              c10::EventFlag flag) const override {
    Guard().record(event, Of(index, stream), index, flag);
  }
  void Block(void* event, DeviceIndex index, c10::StreamId stream) const override {
    Guard().block(event, Of(index, stream));
  }
  bool QueryEvent(void* event) const override { return Guard().queryEvent(event); }
  void SynchronizeEvent(void* event) const override { Guard().synchronizeEvent(event); }
  double ElapsedMs(void* begin, void* end, DeviceIndex index) const override {
    return Guard().elapsedTime(begin, end, index);
  }
  void DestroyEvent(void* event, DeviceIndex index) const noexcept override {
    if (IsCudaReady()) impl_->destroyEvent(event, index);
  }

  at::Generator NewGenerator(DeviceIndex index, bool is_default) const override {
    NeedCuda();
    return is_default ? at::globalContext().defaultGenerator(Inner(index))
                      : Hooks().getNewGenerator(index);
  }
  void Drain(DeviceIndex) const override { NeedCuda(); }  // kernels are put on the stream
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

  const c10::impl::DeviceGuardImplInterface& Guard() const {
    NeedCuda();
    return *impl_;
  }
  static c10::DeviceAllocator& Memory() {
    NeedCuda();
    static auto* memory = c10::getDeviceAllocator(kCuda);
    return *memory;
  }
  static at::HostAllocator& Pinned() {
    NeedCuda();
    static auto* pinned = at::getHostAllocator(kCuda);
    return *pinned;
  }

  const c10::impl::DeviceGuardImplInterface* const impl_;
};

}  // namespace

std::unique_ptr<Platform> CudaPlatform() {
  TORCH_CHECK(c10::impl::hasDeviceGuardImpl(kCuda), "the platform cuda needs a torch with CUDA");
  return std::make_unique<Cuda>();
}

}  // namespace anyop::torch_device
