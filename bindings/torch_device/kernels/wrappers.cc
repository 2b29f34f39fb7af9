// SPDX-License-Identifier: Apache-2.0
// Wraps arguments, takes results over, and hands back what a kernel changed.
#include "kernels/wrappers.h"

#include <ATen/TensorUtils.h>
#include <c10/core/InferenceMode.h>

#include "device/device_guard.h"
#include "routes/overload.h"

namespace anyop::torch_device {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

// Bits of key sets that wrappers do not have: tensors that carry one need more than their bytes.
uint64_t Bits(DispatchKeySet keys) {
  return keys.raw_repr() & ~DispatchKeySet(DispatchKey::PrivateUse1).raw_repr();
}
const uint64_t kNotHeld =
    Bits(DispatchKeySet({DispatchKey::SparsePrivateUse1, DispatchKey::SparseCsrPrivateUse1,
                         DispatchKey::QuantizedPrivateUse1, DispatchKey::NestedTensorPrivateUse1}));
const uint64_t kOdd =
    Bits(DispatchKeySet({DispatchKey::Conjugate, DispatchKey::Negative, DispatchKey::ZeroTensor}));

bool Has(const c10::TensorImpl& impl, uint64_t bits) {
  return (impl.key_set().raw_repr() & bits) != 0;
}

// Plain pointers are read without asking whether they are made; the owners free them with the
// thread.
thread_local constinit WrapperStack* stacks[kMaxDevices] = {};
struct Owner {
  std::vector<std::unique_ptr<WrapperStack>> stacks;
  ~Owner() {
    for (auto& stack : torch_device::stacks) stack = nullptr;
  }
};
thread_local Owner owner;

void SetOddBits(Wrapper* w, const c10::TensorImpl& impl) {
  w->odd = true;
  if (impl.is_conj()) w->impl->_set_conj(true);
  if (impl.is_neg()) w->impl->_set_neg(true);
  if (impl._is_zerotensor()) w->impl->_set_zero(true);
  if (impl.is_wrapped_number()) w->impl->set_wrapped_number(true);
}

// The wrapper is as its last call left it: mostly only the address differs.
void Fill(Wrapper* w, c10::TensorImpl* impl, const Wrapper* shared, DeviceIndex index,
          const Overload& overload) {
  c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  TORCH_CHECK_NOT_IMPLEMENTED(!Has(*impl, kNotHeld) && storage, overload.name,
                              ": the device holds no ", impl->layout(), " tensors");
  w->original_storage = storage;
  w->data = storage->_mutable_data_ptr_no_checks().get();
  w->bytes = storage->nbytes();
  if (shared) [[unlikely]] {
    w->impl->set_storage_keep_dtype(shared->storage);
    w->storage_impl = shared->storage_impl;
    w->shares = w->odd = true;
  } else {
    if (!w->storage_impl->_mutable_data_ptr_no_checks().unsafe_reset_data_and_ctx(w->data))
        [[unlikely]]
      w->storage_impl->set_data_ptr_noswap(c10::DataPtr(w->data, platform->Inner(index)));
    if (w->storage_impl->nbytes() != w->bytes) w->storage_impl->set_nbytes(w->bytes);
  }
  if (w->impl->dtype() != impl->dtype() || !w->impl->LiesAs(*impl)) w->impl->LieAs(*impl);
  if (Has(*impl, kOdd) || impl->is_wrapped_number()) [[unlikely]]
    SetOddBits(w, *impl);
}

// Hands back what the kernel changed of a written argument.
void FinishOne(Wrapper* w, DeviceIndex index) {
  c10::TensorImpl* original = w->original;
  c10::StorageImpl* storage = w->impl->unsafe_storage().unsafeGetStorageImpl();
  const c10::Device outer = Outer(index);
  if (storage != w->storage_impl) [[unlikely]] {  // the kernel gave it another storage
    storage->_mutable_data_ptr_no_checks().unsafe_set_device(outer);
    original->set_storage_keep_dtype(w->impl->storage());
    w->odd = true;
  } else if (storage->_mutable_data_ptr_no_checks().get() != w->data ||
             storage->nbytes() != w->bytes) [[unlikely]] {  // resized
    c10::DataPtr made = std::move(storage->_mutable_data_ptr_no_checks());
    storage->set_data_ptr_noswap(c10::DataPtr(made.get(), platform->Inner(index)));
    made.unsafe_set_device(outer);
    c10::StorageImpl* kept = original->unsafe_storage().unsafeGetStorageImpl();
    w->data = made.get();
    w->bytes = storage->nbytes();
    kept->set_data_ptr_noswap(std::move(made));
    kept->set_nbytes(w->bytes);
  }
  if (!w->impl->LiesAs(*original)) [[unlikely]]
    original->set_sizes_and_strides(w->impl->sizes(), w->impl->strides(),
                                    w->impl->storage_offset());
}

}  // namespace

WrapperStack& WrapperStack::Of(DeviceIndex index) {
  WrapperStack*& stack = stacks[index];
  if (!stack) [[unlikely]]
    stack = owner.stacks.emplace_back(std::make_unique<WrapperStack>(index)).get();
  return *stack;
}

void WrapperStack::Grow() {
  wrappers_.push_back(std::make_unique<Wrapper>());
  Renew(wrappers_.back().get());
}

void WrapperStack::Renew(Wrapper* wrapper) const {
  const c10::InferenceMode off(false);  // a wrapper serves calls in and out of inference mode
  wrapper->storage = c10::Storage(c10::Storage::use_byte_size_t(), 0,
                                  c10::DataPtr(nullptr, platform->Inner(index_)),
                                  c10::GetAllocator(platform->inner), /*resizable=*/true);
  auto mirror = c10::make_intrusive<Mirror>(c10::Storage(wrapper->storage), platform->inner_keys,
                                            caffe2::TypeMeta::Make<float>());
  wrapper->impl = mirror.get();
  wrapper->tensor = at::Tensor(std::move(mirror));
  wrapper->storage_impl = wrapper->storage.unsafeGetStorageImpl();
  wrapper->shares = wrapper->odd = false;
}

// Something outside keeps the wrapper's memory (a result, a tensor that the kernel saved): it must
// own the bytes from now on.
void WrapperStack::LetGo(Wrapper* wrapper) const {
  auto* keep = new c10::Storage(wrapper->original->storage());
  wrapper->storage.unsafeGetStorageImpl()->set_data_ptr_noswap(c10::DataPtr(
      wrapper->data, keep, [](void* held) { delete static_cast<c10::Storage*>(held); },
      platform->Inner(index_)));
}

void WrapperStack::PopTo(size_t top) {
  // Sharers were pushed behind whom they share with: they go first.
  while (top_ > top) {
    Wrapper& w = *wrappers_[--top_];
    const bool kept =
        w.tensor.use_count() != 1 || w.storage.use_count() != 2;  // its own and the tensor's
    if (!kept && !w.odd) [[likely]]
      continue;
    if (kept && !w.shares) LetGo(&w);
    Renew(&w);
  }
}

const at::Tensor& Call::In(const at::Tensor& tensor, bool written) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (!impl->is_privateuseone()) [[unlikely]] {
    if (tensor.defined()) NoteForeign(tensor, written);
    return tensor;
  }
  const DeviceIndex index = impl->device().index();
  any_written_ |= written;
  const Wrapper* shared = nullptr;
  if (!stack_) {
    stack_ = &WrapperStack::Of(index);
    base_ = stack_->Top();
    index_ = index;
  } else {
    if (index != index_) [[unlikely]]
      RefuseDevice(impl->device());
    const c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
    for (size_t i = base_, top = stack_->Top(); i < top; ++i) {
      Wrapper& w = stack_->At(i);
      if (w.original == impl) {
        w.written |= written;
        return w.tensor;
      }
      if (w.original_storage == storage && !w.shares) shared = &w;
    }
  }
  Wrapper& w = stack_->Push();
  w.original = impl;
  w.written = written;
  Fill(&w, impl, shared, index, overload_);
  return w.tensor;
}

c10::Device Call::InDevice(c10::Device device) {
  if (device.type() != kOuter) return device;
  const DeviceIndex index = OrCurrent(device.index());
  CheckIndex(index);
  if (!stack_) index_ = index;
  return platform->Inner(index);
}

// Tensors with one number on the CPU go along with any device.
void Call::NoteForeign(const at::Tensor& tensor, bool written) {
  const bool number = tensor.device().is_cpu() && tensor.dim() == 0 && !written;
  if (number || tensor.device().is_meta()) return;
  if (!foreign_) foreign_ = tensor.unsafeGetTensorImpl();
}

void Call::CheckForeign() const {
  if (stack_) RefuseDevice(foreign_->device());
  // Only a generator of this device brought the call here.
  TORCH_CHECK(!overload_.takes_generator, "Expected a '", foreign_->device_type(),
              "' device type for generator but found '", kOuter, "'");
}

void Call::RefuseDevice(c10::Device device) const {
  TORCH_CHECK(false, overload_.name,
              ": Expected all tensors to be on the same device, but found at least two devices, ",
              Outer(index_), " and ", device, "!");
}

void Call::TakeOver(c10::TensorImpl* impl, c10::Storage storage) {
  impl->set_storage_keep_dtype(std::move(storage));
  impl->_change_backend_component_keys(Outer(Index()));
}

at::Tensor Call::Out(at::Tensor result) {
  c10::TensorImpl* impl = result.unsafeGetTensorImpl();
  if (!result.defined() || impl->device_type() != platform->inner) return result;
  TORCH_CHECK_NOT_IMPLEMENTED(impl->has_storage() && !Has(*impl, kNotHeld), overload_.name,
                              ": its result is a ", impl->layout(), " ", impl->dtype(),
                              " tensor, which the device does not hold");
  c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  if (stack_) {
    for (size_t i = base_; i < stack_->Top(); ++i) {
      Wrapper& w = stack_->At(i);
      if (w.impl == impl)
        return at::Tensor(
            c10::intrusive_ptr<c10::TensorImpl>::unsafe_reclaim_from_nonowning(w.original));
      if (w.storage_impl == storage) {  // a view of an argument
        TakeOver(impl, w.original->storage());
        return result;
      }
    }
  }
  if (storage->device_type() == kOuter) return result;  // of this call already: one result twice
  storage->_mutable_data_ptr_no_checks().unsafe_set_device(Outer(Index()));
  storage->set_allocator(DeviceAllocator());
  // Taken out and put back, which sets the tensor's device and counts no reference.
  TakeOver(impl, std::move(const_cast<c10::Storage&>(impl->unsafe_storage())));
  return result;
}

void Call::Finish() {
  if (!any_written_) return;
  for (size_t i = base_; i < stack_->Top(); ++i) {
    Wrapper& w = stack_->At(i);
    if (w.written) FinishOne(&w, index_);
  }
}

}  // namespace anyop::torch_device
