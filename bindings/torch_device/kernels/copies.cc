// SPDX-License-Identifier: Apache-2.0
// Copies within the device, and between it, the CPU and the inner device.
#include "kernels/copies.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/from_blob.h>

#include "kernels/wrappers.h"
#include "routes/overload.h"

namespace anyop::torch_device {
namespace {

using at::Tensor;

const Overload& CopyFacts() {
  static const auto& facts =
      *new Overload(c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", ""));
  return facts;
}

DeviceIndex IndexOf(const Tensor& tensor) {
  return tensor.is_privateuseone() ? tensor.device().index() : DeviceIndex(-1);
}

// As other kernels run: casts, mostly.
Tensor& CopyWithin(Tensor& self, const Tensor& source, bool non_blocking) {
  Call call(CopyFacts());
  Tensor& inner_self = call.InWritten(self);
  const Tensor& inner_source = call.In(source);
  call.Ready();
  at::_ops::copy_::redispatch(platform->inner_keys, inner_self, inner_source, non_blocking);
  call.Finish();
  return self;
}

// The device copies bytes that lie alike, and is done with it.
void Move(const Tensor& to, const Tensor& from) {
  const DeviceIndex index = IndexOf(to) >= 0 ? IndexOf(to) : IndexOf(from);
  TORCH_CHECK(to.numel() == 0 || platform->CopyLater(to, IndexOf(to), from, IndexOf(from)),
              platform->name, ": a copy of memory that the device did not allocate");
  platform->SynchronizeStream(index, platform->Stream(index));
}

// The bytes that a tensor of the device spans, as a tensor.
Tensor Spanned(const Tensor& tensor) {
  int64_t count = 1;
  for (int64_t d = 0; d < tensor.dim(); ++d) count += (tensor.size(d) - 1) * tensor.stride(d);
  const auto size = static_cast<int64_t>(tensor.element_size());
  auto bytes = c10::make_intrusive<c10::TensorImpl>(
      c10::Storage(tensor.storage()), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      caffe2::TypeMeta::Make<uint8_t>());
  bytes->set_sizes_contiguous({count * size});
  bytes->set_storage_offset(tensor.storage_offset() * size);
  return Tensor(std::move(bytes));
}

// The same, on the CPU, with what is in it; kept is its memory.
Tensor OnCpu(const Tensor& tensor, Tensor* kept) {
  const Tensor there = Spanned(tensor);
  *kept = at::empty(there.sizes(), at::TensorOptions().dtype(at::kByte));
  Move(*kept, there);
  Tensor here = at::from_blob(kept->mutable_data_ptr(), tensor.sizes(), tensor.strides(),
                              at::TensorOptions().dtype(tensor.dtype()));
  here._set_conj(tensor.is_conj());
  here._set_neg(tensor.is_neg());
  return here;
}

// Where the CPU does not reach the device's memory: casts and layouts are made on the CPU.
void CopyByCpu(const Tensor& self, const Tensor& source, bool non_blocking) {
  const DeviceIndex to = IndexOf(self), from = IndexOf(source);
  if (self.numel() == 0) return;
  if (platform->CopyLater(self, to, source, from)) {
    const DeviceIndex index = to >= 0 ? to : from;
    if (!non_blocking) platform->SynchronizeStream(index, platform->Stream(index));
    return;
  }
  Tensor kept_self, kept_source;
  const Tensor here = to >= 0 ? OnCpu(self, &kept_self) : self;
  const Tensor given = from >= 0 ? OnCpu(source, &kept_source) : source;
  here.copy_(given);
  if (to >= 0) Move(Spanned(self), kept_self);
}

}  // namespace

Tensor& Copy(Tensor& self, const Tensor& source, bool non_blocking) {
  if (source._is_zerotensor()) return self.zero_();
  const DeviceIndex to = IndexOf(self), from = IndexOf(source);
  if (non_blocking && Use()->CopyLater(self, to, source, from)) return self;
  const at::AutoDispatchBelowADInplaceOrView below;
  if (!Use()->boxed) {
    CopyByCpu(self, source, non_blocking);
    return self;
  }
  if (to == from) return CopyWithin(self, source, non_blocking);
  Call written(CopyFacts()), read(CopyFacts());
  Tensor& inner_self = written.InWritten(self);
  const Tensor& inner_source = read.In(source);
  if (to >= 0) Use()->Drain(to);
  if (from >= 0 && from != to) Use()->Drain(from);
  inner_self.copy_(inner_source, non_blocking);
  written.Finish();
  return self;
}

Tensor CopyFrom(const Tensor& source, const Tensor& to, bool non_blocking) {
  Tensor written = to;
  Copy(written, source, non_blocking);
  return to;
}

Tensor CopyFromAndResize(const Tensor& source, const Tensor& to) {
  if (to.sizes() != source.sizes()) to.resize_(source.sizes());
  return CopyFrom(source, to, false);
}

void CopyBytes(void* to, const void* from, size_t bytes, DeviceIndex index) {
  const auto options = at::TensorOptions(platform->Inner(index)).dtype(at::kByte);
  const auto count = static_cast<int64_t>(bytes);
  TORCH_CHECK_NOT_IMPLEMENTED(Use()->boxed, platform->name,
                              ": memory of the device is not copied by its address alone");
  const at::AutoDispatchBelowADInplaceOrView below;
  Use()->Drain(index);
  at::from_blob(to, {count}, options)
      .copy_(at::from_blob(const_cast<void*>(from), {count}, options));
}

}  // namespace anyop::torch_device
