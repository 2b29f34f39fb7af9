// SPDX-License-Identifier: Apache-2.0
// Memory for results of callers whose framework brings no allocator.
#include <algorithm>
#include <cstdlib>
#include <new>

#include "anyop/kernel.h"
#include "library.h"
#include "operator/operator.h"
#include "tensors/memory.h"

namespace anyop::ffi {
namespace {

using SetError = void (*)(void* context, const char* kind, const char* message);

// A tensor with its sizes; data lies behind it, 64-byte aligned.
struct alignas(64) Owned {
  DLManagedTensorVersioned managed;
  int64_t sizes[2 * kMaxRank];
};

int Allocate(DLTensor* wanted, DLManagedTensorVersioned** out, void* context, SetError set_error) {
  if (wanted->device.device_type != kDLCPU) {
    set_error(context, "ValueError",
              "no allocator is set for this device: give the result's tensor as the last argument");
    return -1;
  }
  if (wanted->ndim < 0 || wanted->ndim > kMaxRank) {
    set_error(context, "ValueError", "a tensor has at most 32 dimensions");
    return -1;
  }
  Owned probe = {};
  std::copy_n(wanted->shape, wanted->ndim, probe.sizes);
  FillStrides(wanted->ndim, probe.sizes, probe.sizes + kMaxRank);
  const int64_t item_bytes = (int64_t{wanted->dtype.bits} * wanted->dtype.lanes + 7) / 8;
  AnyopTensor measured = {};
  measured.ndim = wanted->ndim;
  measured.shape = probe.sizes;
  measured.strides = probe.sizes + kMaxRank;
  Footprint footprint;
  if (MeasureFootprint(measured, item_bytes, &footprint) != Extent::kFits) {
    set_error(context, "ValueError", "the size of the result in bytes overflows 64 bits");
    return -1;
  }
  const uint64_t bytes =
      (static_cast<uint64_t>(footprint.numel) * static_cast<uint64_t>(item_bytes) + 63) / 64 * 64;
  void* memory = std::aligned_alloc(alignof(Owned), sizeof(Owned) + bytes);
  if (!memory) {
    set_error(context, "MemoryError", "out of memory");
    return -1;
  }
  auto* owned = new (memory) Owned(probe);
  owned->managed.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
  owned->managed.manager_ctx = owned;
  owned->managed.deleter = [](DLManagedTensorVersioned* self) { std::free(self->manager_ctx); };
  owned->managed.dl_tensor = *wanted;
  owned->managed.dl_tensor.data = owned + 1;
  owned->managed.dl_tensor.shape = owned->sizes;
  owned->managed.dl_tensor.strides = owned->sizes + kMaxRank;
  owned->managed.dl_tensor.byte_offset = 0;
  *out = &owned->managed;
  return 0;
}

}  // namespace

void InstallAllocator(const Library& library) {
  // Get answers the thread's allocator where there is one, so that is put aside first. Setting the
  // global one sets the thread's too.
  DLPackManagedTensorAllocator of_thread = nullptr;
  if (library.SetAllocator(nullptr, 0, &of_thread)) return;
  if (!library.GetAllocator()) library.SetAllocator(Allocate, 1, nullptr);
  library.SetAllocator(of_thread, 0, nullptr);
}

}  // namespace anyop::ffi
