// SPDX-License-Identifier: Apache-2.0
// A call of one of torch's kernels of the inner device on tensors of this device: each argument is
// wrapped by a tensor of the inner device over the same bytes, results are taken over as tensors of
// this device. The caller's tensors are never changed, other than by what the kernel writes.
//
// Wrappers stay with their thread and are used again. A call takes some from the top of the stack
// and puts them back, so calls may nest.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <memory>
#include <vector>

#include "platform/platform.h"

namespace anyop::torch_device {

struct Overload;

// A tensor that can take on how another one lies: what follows from sizes and strides is copied,
// not computed again.
class Mirror final : public c10::TensorImpl {
 public:
  using TensorImpl::TensorImpl;

  bool LiesAs(const c10::TensorImpl& other) const {
    const auto sizes = other.sizes(), strides = other.strides();
    if (sizes.size() != sizes_and_strides_.size() || other.storage_offset() != storage_offset_)
      return false;
    const int64_t* own_sizes = sizes_and_strides_.sizes_data();
    const int64_t* own_strides = sizes_and_strides_.strides_data();
    int64_t differ = 0;
    for (size_t i = 0; i < sizes.size(); ++i)
      differ |= (sizes[i] ^ own_sizes[i]) | (strides[i] ^ own_strides[i]);
    return differ == 0;
  }

  // Sizes, strides, offset and dtype.
  void LieAs(const c10::TensorImpl& other) {
    const auto device = device_opt_;
    copy_generic_tensor_metadata(&other, this);
    device_opt_ = device;
    extra_meta_.reset();  // names and the like are not the kernel's
  }
};

struct Wrapper {
  at::Tensor tensor;     // of the inner device
  c10::Storage storage;  // its own; it uses that of another wrapper when `shares`
  Mirror* impl;
  c10::StorageImpl* storage_impl;  // the one in use
  // Of the call it is in:
  c10::TensorImpl* original;
  c10::StorageImpl* original_storage;
  void* data;
  size_t bytes;
  bool written;
  bool shares;
  bool odd;  // the next use must not see it as it is: a bit is set, a storage is another's
};

// Those of a thread and an inner device.
class WrapperStack {
 public:
  explicit WrapperStack(DeviceIndex index) : index_(index) {}
  Wrapper& Push() {
    if (top_ == wrappers_.size()) [[unlikely]]
      Grow();
    return *wrappers_[top_++];
  }
  Wrapper& At(size_t place) { return *wrappers_[place]; }
  void PopTo(size_t top);
  size_t Top() const { return top_; }
  static WrapperStack& Of(DeviceIndex index);

 private:
  void Grow();
  void Renew(Wrapper* wrapper) const;
  void LetGo(Wrapper* wrapper) const;

  std::vector<std::unique_ptr<Wrapper>> wrappers_;  // they stay where they are
  size_t top_ = 0;
  DeviceIndex index_;
};

class Call {
 public:
  explicit Call(const Overload& overload) : overload_(overload) {}
  ~Call() {
    kernel_device = outer_kernel_;
    if (stack_) stack_->PopTo(base_);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // The tensor to give the kernel; valid until the call ends. Tensors of the inner device and
  // undefined ones are given as they are.
  const at::Tensor& In(const at::Tensor& tensor, bool written = false);
  // One that may lie on the CPU beside tensors of the device, as indices may.
  const at::Tensor& InIndex(const at::Tensor& tensor) {
    return tensor.is_cpu() ? tensor : In(tensor);
  }
  at::Tensor& InWritten(at::Tensor& tensor) { return const_cast<at::Tensor&>(In(tensor, true)); }
  // A device argument of a factory.
  c10::Device InDevice(c10::Device device);

  // After all arguments: refuses mixed devices, waits for the stream where the platform needs that.
  void Ready() {
    if (foreign_) [[unlikely]]
      CheckForeign();
    const DeviceIndex index = Index();
    platform->Drain(index);
    kernel_device = index;
  }

  // A result of the kernel as a tensor of this device.
  at::Tensor Out(at::Tensor result);
  // After the kernel: sizes and memory that it changed of written arguments.
  void Finish();

  DeviceIndex Index() { return stack_ ? index_ : (index_ = OrCurrent(index_)); }

 private:
  void NoteForeign(const at::Tensor& tensor, bool written);
  void CheckForeign() const;
  [[noreturn]] void RefuseDevice(c10::Device device) const;
  void TakeOver(c10::TensorImpl* impl, c10::Storage storage);

  const Overload& overload_;
  WrapperStack* stack_ = nullptr;
  size_t base_ = 0;
  DeviceIndex index_ = -1;
  bool any_written_ = false;
  const DeviceIndex outer_kernel_ = kernel_device;
  const c10::TensorImpl* foreign_ = nullptr;  // a tensor of another device that may not be there
};

}  // namespace anyop::torch_device
