// SPDX-License-Identifier: Apache-2.0
// The one file that includes torch's headers, c10's and the dispatcher's: built once per torch
// version at first need, or shipped.
#include "torch_glue.h"

#include <c10/core/Allocator.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "torch_boxed.h"
#include "torch_lend.h"
#include "torch_view.h"

// Of libtorch_cpu; the headers they stand in would cost seconds.
namespace at {
TORCH_API bool hasCallbacks();
}
namespace torch::autograd {
struct ForwardADLevel {
  TORCH_API static std::shared_ptr<ForwardADLevel> try_get_by_idx(uint64_t level);
};
}  // namespace torch::autograd

namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::ScalarType;
namespace glue = anyop::glue;

// A tensor with other keys is lazy (conj, neg), wrapped, sparse, quantized, nested, meta or not
// torch's own.
constexpr DispatchKeySet kPlainKeys = DispatchKeySet({
    DispatchKey::CPU,
    DispatchKey::CUDA,
    DispatchKey::PrivateUse1,
    DispatchKey::AutogradCPU,
    DispatchKey::AutogradCUDA,
    DispatchKey::AutogradPrivateUse1,
    DispatchKey::ADInplaceOrView,
    DispatchKey::AutocastCPU,
    DispatchKey::AutocastCUDA,
    DispatchKey::AutocastPrivateUse1,
});

bool Within(DispatchKeySet keys, DispatchKeySet others) {
  return (keys.raw_repr() & ~others.raw_repr()) == 0;
}

int32_t ThreadVerdict(int32_t* flags) {
  const auto local = c10::impl::tls_local_dispatch_key_set();
  const c10::AutogradState& autograd = c10::AutogradState::get_tls_state();
  const bool below_autograd = local.excluded_.has(DispatchKey::AutogradOther);
  const bool observed = *flags & kAnyopTorchObserved;
  *flags = autograd.get_grad_mode() && !below_autograd ? kAnyopTorchRecords : 0;
  const bool quiet = Within(local.included_, c10::default_included_set) &&
                     Within(c10::default_excluded_set, local.excluded_) &&
                     !at::impl::torch_function_mode_enabled() && (observed || !at::hasCallbacks());
  return quiet ? kAnyopTorchPlain : kAnyopTorchDispatch;
}

int32_t ViewMemory(void* pointer, int32_t* flags, AnyopTensor* tensor) {
  auto& impl = *static_cast<c10::TensorImpl*>(pointer);
  const bool writes = *flags & kAnyopTorchWrites;
  const glue::Memory memory = glue::FillView(impl, writes, tensor);
  if (__builtin_expect(memory != glue::Memory::kWhole, 0)) {
    if (memory == glue::Memory::kNone) return 1;
    *flags |= kAnyopTorchShortStorage;
  }
  if (tensor->device_type == glue::kNowhere) return 1;
  if (writes && impl.is_inference() && !c10::InferenceMode::is_enabled())
    *flags |= kAnyopTorchFrozen;
  return 0;
}

int32_t GuardedViewMemory(void* impl, int32_t* flags, AnyopTensor* tensor) {
  try {
    return ViewMemory(impl, flags, tensor);
  } catch (...) {  // memory that must not be looked at
    return 1;
  }
}

// Within a __torch_dispatch__ the keys that would resolve a lazy tensor are left out.
int32_t ViewBelowDispatcher(void* pointer, int32_t* flags, AnyopTensor* tensor) {
  constexpr DispatchKeySet kLazyKeys({DispatchKey::Conjugate, DispatchKey::Negative});
  if (__builtin_expect(static_cast<c10::TensorImpl*>(pointer)->key_set().has_any(kLazyKeys), 0))
    *flags |= kAnyopTorchLazy;
  return GuardedViewMemory(pointer, flags, tensor);
}

int32_t View(void* pointer, int32_t* flags, AnyopTensor* tensor) {
  auto& impl = *static_cast<c10::TensorImpl*>(pointer);
  if (__builtin_expect(!Within(impl.key_set(), kPlainKeys), 0)) return kAnyopTorchDispatch;
  if (__builtin_expect(GuardedViewMemory(pointer, flags, tensor), 0)) return kAnyopTorchDispatch;
  if (!impl.autograd_meta()) return kAnyopTorchPlain;
  // Inside dual_level() it may carry a tangent.
  if (torch::autograd::ForwardADLevel::try_get_by_idx(0)) return kAnyopTorchDispatch;
  return (*flags & kAnyopTorchRecords) && impl.requires_grad() ? kAnyopTorchGradient
                                                               : kAnyopTorchPlain;
}

void Written(void* pointer) {
  auto& impl = *static_cast<c10::TensorImpl*>(pointer);
  if (!impl.is_inference()) impl.bump_version();
}

c10::intrusive_ptr<c10::TensorImpl> Make(const AnyopTensor& like, const glue::Place& place,
                                         c10::Device device, ScalarType dtype) {
  int64_t bytes = like.dtype_bits / 8;
  for (int32_t i = 0; i < like.ndim; ++i) bytes *= like.shape[i];
  c10::Allocator* allocator = c10::GetAllocator(device.type());
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                       allocator, /*resizable=*/true);
  auto impl = c10::make_intrusive<c10::TensorImpl>(c10::Storage(std::move(storage)),
                                                   DispatchKeySet(place.key),
                                                   c10::scalarTypeToTypeMeta(dtype));
  impl->set_sizes_contiguous(c10::IntArrayRef(like.shape, static_cast<size_t>(like.ndim)));
  return impl;
}

int32_t NewTensor(AnyopTensor* tensor, void** made, char* error, int64_t error_bytes) {
  try {
    const glue::Dtype* dtype = glue::FindDtype(*tensor);
    const glue::Place* place = glue::FindPlace(tensor->device_type);
    if (!dtype || !place) {
      std::snprintf(error, static_cast<size_t>(error_bytes), "torch has no such dtype or device");
      return kAnyopTypeError;
    }
    const c10::Device device = glue::DeviceAt(*place, tensor->device_id);
    c10::OptionalDeviceGuard guard;
    if (!device.is_cpu()) guard.reset_device(device);
    auto impl = Make(*tensor, *place, device, dtype->torch);
    tensor->data = impl->storage().mutable_data();
    glue::SetSizes(*impl, tensor);
    *made = impl.release();
    return kAnyopOk;
  } catch (const c10::Error& e) {
    std::snprintf(error, static_cast<size_t>(error_bytes), "%s", e.what_without_backtrace());
  } catch (const std::exception& e) {
    std::snprintf(error, static_cast<size_t>(error_bytes), "%s", e.what());
  }
  return kAnyopOutOfMemory;
}

void Release(void* impl) {
  (void)c10::intrusive_ptr<c10::TensorImpl>::reclaim(static_cast<c10::TensorImpl*>(impl));
}

// The storages that one call holds, of as many tensors. Owned; the lowest bit of an address says
// that the storage may be resized again when it is let go.
struct Held {
  Held *before, *after;
  uint64_t count;
  uintptr_t storages[1];
};
constexpr uintptr_t kResizable = 1;
std::mutex held_lock;
Held* all_held = nullptr;

c10::StorageImpl* StorageOf(uintptr_t word) {
  return reinterpret_cast<c10::StorageImpl*>(word & ~kResizable);
}

// Nothing where the tensor has none, or says that it must not be looked at.
c10::Storage StorageToHold(const c10::TensorImpl& impl) {
  try {
    return impl.has_storage() ? impl.unsafe_storage() : c10::Storage();
  } catch (...) {
    return {};
  }
}

void* Hold(void* const* impls, uint64_t count) {
  auto* held = static_cast<Held*>(std::malloc(sizeof(Held) + count * sizeof(uintptr_t)));
  if (!held) return nullptr;
  held->before = nullptr, held->count = 0;
  const std::lock_guard<std::mutex> lock(held_lock);
  for (uint64_t i = 0; i < count; ++i) {
    c10::Storage storage = StorageToHold(*static_cast<c10::TensorImpl*>(impls[i]));
    if (!storage) continue;
    c10::StorageImpl* impl = storage.unsafeReleaseStorageImpl();
    const bool resizable = impl->resizable();
    if (resizable) impl->set_resizable(false);
    held->storages[held->count++] = reinterpret_cast<uintptr_t>(impl) | (resizable ? 1 : 0);
  }
  held->after = all_held;
  if (all_held) all_held->before = held;
  return all_held = held;
}

// Calls of other threads hold some of the same storages: the last one makes these resizable.
void HandOver(Held* held) {
  std::unordered_map<c10::StorageImpl*, uintptr_t*> others;
  for (Held* other = all_held; other; other = other->after) {
    for (uint64_t i = 0; i < other->count; ++i)
      others[StorageOf(other->storages[i])] = &other->storages[i];
  }
  for (uint64_t i = 0; i < held->count; ++i) {
    if (!(held->storages[i] & kResizable)) continue;
    const auto found = others.find(StorageOf(held->storages[i]));
    if (found == others.end()) continue;
    *found->second |= kResizable;
    held->storages[i] &= ~kResizable;
  }
}

void LetGo(void* pointer) {
  auto* held = static_cast<Held*>(pointer);
  {
    const std::lock_guard<std::mutex> lock(held_lock);
    (held->before ? held->before->after : all_held) = held->after;
    if (held->after) held->after->before = held->before;
    if (all_held) HandOver(held);
    for (uint64_t i = 0; i < held->count; ++i) {
      if (held->storages[i] & kResizable) StorageOf(held->storages[i])->set_resizable(true);
    }
  }
  for (uint64_t i = 0; i < held->count;
       ++i)  // without the lock: memory may be freed by Python code
    (void)c10::intrusive_ptr<c10::StorageImpl>::reclaim(StorageOf(held->storages[i]));
  std::free(held);
}

const AnyopTorchGlue table = {
    sizeof(AnyopTorchGlue),
    ANYOP_TORCH_GLUE_VERSION,
    ANYOP_TORCH_VERSION,
    ThreadVerdict,
    View,
    ViewBelowDispatcher,
    Written,
    NewTensor,
    Release,
    Hold,
    LetGo,
    glue::Enter,
    glue::Leave,
    glue::Lend,
    glue::IsKept,
    glue::TakeBack,
    glue::Implement,
};

}  // namespace

// A kernel's first call on a device is made by Python, and brings torch's start about.
void anyop::glue::StartCuda(c10::Device) {}

extern "C" __attribute__((visibility("default"))) const AnyopTorchGlue* AnyopTorchGlueEntry() {
  return &table;
}
