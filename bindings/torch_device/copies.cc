// SPDX-License-Identifier: Apache-2.0
// Copies within the device, and between it, the CPU and the inner device.
#include "copies.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/from_blob.h>

#include "overload.h"
#include "wrappers.h"

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

}  // namespace

Tensor& Copy(Tensor& self, const Tensor& source, bool non_blocking) {
  if (source._is_zerotensor()) return self.zero_();
  const DeviceIndex to = IndexOf(self), from = IndexOf(source);
  if (non_blocking && Use()->CopyLater(self, to, source, from)) return self;
  const at::AutoDispatchBelowADInplaceOrView below;
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
  const at::AutoDispatchBelowADInplaceOrView below;
  Use()->Drain(index);
  at::from_blob(to, {count}, options)
      .copy_(at::from_blob(const_cast<void*>(from), {count}, options));
}

}  // namespace anyop::torch_device
