// SPDX-License-Identifier: Apache-2.0
// Making, viewing, resizing and copying tensors of the device.
#include "kernels/own_kernels.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_has_compatible_shallow_copy_type_native.h>
#include <ATen/ops/_local_scalar_dense_ops.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>

#include <set>

#include "device/device_guard.h"
#include "kernels/copies.h"
#include "kernels/wrappers.h"
#include "routes/overload.h"

namespace anyop::torch_device {
namespace {

using at::Tensor;
using c10::SymInt;
using c10::SymIntArrayRef;
using std::optional;

constexpr c10::DispatchKeySet kOuterKeys(c10::DispatchKey::PrivateUse1);

void CheckFactory(optional<at::Layout> layout, optional<bool> pinned) {
  TORCH_CHECK_NOT_IMPLEMENTED(!layout || *layout == at::kStrided, "the device holds no ", *layout,
                              " tensors");
  TORCH_CHECK(!pinned || !*pinned, "Only dense CPU tensors can be pinned");
}

// The guard is set only where the device is not current already.
c10::OptionalDeviceGuard OnDevice(optional<c10::Device> device) {
  if (!device || !device->has_index() || device->index() == Use()->Current())
    return c10::OptionalDeviceGuard();
  return c10::OptionalDeviceGuard(*device);
}

Tensor Empty(SymIntArrayRef size, optional<at::ScalarType> dtype, optional<at::Layout> layout,
             optional<c10::Device> device, optional<bool> pinned,
             optional<at::MemoryFormat> format) {
  CheckFactory(layout, pinned);
  const auto guard = OnDevice(device);
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), DeviceAllocator(), kOuterKeys,
                                   c10::dtype_or_default(dtype), format);
}

Tensor EmptyStrided(SymIntArrayRef size, SymIntArrayRef stride, optional<at::ScalarType> dtype,
                    optional<at::Layout> layout, optional<c10::Device> device,
                    optional<bool> pinned) {
  CheckFactory(layout, pinned);
  const auto guard = OnDevice(device);
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size),
                                           C10_AS_INTARRAYREF_SLOW(stride), DeviceAllocator(),
                                           kOuterKeys, c10::dtype_or_default(dtype));
}

Tensor AsStrided(const Tensor& self, SymIntArrayRef size, SymIntArrayRef stride,
                 optional<SymInt> offset) {
  return at::native::as_strided_tensorimpl(
      self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
      offset ? optional<int64_t>(offset->guard_int(__FILE__, __LINE__)) : std::nullopt);
}

Tensor View(const Tensor& self, SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

Tensor ReshapeAlias(const Tensor& self, SymIntArrayRef size, SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size),
                                    C10_AS_INTARRAYREF_SLOW(stride));
}

// Enlarges the storage where it holds less than such a tensor needs. What overflows is refused
// before anything changes.
void Fit(const c10::Storage& storage, c10::IntArrayRef size, optional<c10::IntArrayRef> stride,
         size_t item, int64_t offset) {
  at::detail::check_size_nonnegative(size);
  TORCH_CHECK(offset >= 0, "Tensor: invalid storage offset ", offset);
  TORCH_CHECK(!stride || stride->size() == size.size(), "unequal size length (", size.size(),
              ") and stride length (", stride ? stride->size() : 0, ")");
  uint64_t numel = 1;
  TORCH_CHECK(!c10::safe_multiplies_u64(size, &numel) && numel <= INT64_MAX,
              "numel: integer multiplication overflow of sizes ", size);
  if (numel == 0) return;
  const size_t bytes = stride ? at::detail::computeStorageNbytes(size, *stride, item, offset)
                              : at::detail::computeStorageNbytesContiguous(size, item, offset);
  if (bytes > storage.nbytes()) ResizeStorage(storage, bytes);
}

const Tensor& Resize(const Tensor& self, SymIntArrayRef size, optional<at::MemoryFormat> format) {
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  const c10::IntArrayRef sizes = C10_AS_INTARRAYREF_SLOW(size);
  if (impl->sizes() != sizes) {
    Fit(impl->unsafe_storage(), sizes, std::nullopt, impl->itemsize(), impl->storage_offset());
    impl->set_sizes_contiguous(sizes);
  }
  if (format && *format != at::MemoryFormat::Preserve) impl->empty_tensor_restride(*format);
  return self;
}

Tensor& SetStorage(Tensor& self, at::Storage source, SymInt offset, SymIntArrayRef size,
                   SymIntArrayRef stride) {
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  const c10::IntArrayRef sizes = C10_AS_INTARRAYREF_SLOW(size);
  const int64_t begin = offset.guard_int(__FILE__, __LINE__);
  const auto strides =
      stride.data() ? optional<c10::IntArrayRef>(C10_AS_INTARRAYREF_SLOW(stride)) : std::nullopt;
  TORCH_CHECK(source.device() == self.storage().device(), "a tensor on ", self.storage().device(),
              " cannot have a storage on ", source.device());
  Fit(source, sizes, strides, impl->itemsize(), begin);
  if (!self.storage().is_alias_of(source)) impl->set_storage_keep_dtype(std::move(source));
  if (strides)
    impl->set_sizes_and_strides(sizes, *strides, begin);
  else
    impl->set_storage_offset(begin), impl->set_sizes_contiguous(sizes);
  return self;
}

Tensor& SetWholeStorage(Tensor& self, at::Storage source) {
  const auto count = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return SetStorage(self, std::move(source), 0, SymInt(count), {});
}

Tensor& SetTensor(Tensor& self, const Tensor& source) {
  if (self.unsafeGetTensorImpl() == source.unsafeGetTensorImpl()) return self;
  return SetStorage(self, source.storage(), source.sym_storage_offset(), source.sym_sizes(),
                    source.sym_strides());
}

Tensor& SetEmpty(Tensor& self) {
  const auto guard = OnDevice(self.device());
  at::Storage none(at::Storage::use_byte_size_t(), 0, DeviceAllocator()->allocate(0),
                   DeviceAllocator(), /*resizable=*/true);
  return SetStorage(self, std::move(none), 0, SymIntArrayRef(SymInt(0)), {});
}

at::Scalar LocalScalar(const Tensor& self) {
  if (!platform->boxed) return self.cpu().item();  // the CPU cannot read the device's memory
  static const auto* facts =
      MakeOverload(c10::Dispatcher::singleton().findSchemaOrThrow("aten::_local_scalar_dense", ""));
  Call call(*facts);
  const Tensor& inner = call.In(self);
  call.Ready();
  return at::_ops::_local_scalar_dense::redispatch(platform->inner_keys, inner);
}

void RecordStream(Tensor& self, c10::Stream stream) {
  Use()->RecordStream(self.storage().data_ptr(), stream.id(), stream.device_index());
}

// Module.to() keeps a parameter's identity, and so tied weights tied, where this says yes.
bool HasCompatibleType(const Tensor& self, const Tensor& from) {
  const auto dense = [](const Tensor& tensor) {
    return tensor.layout() == at::kStrided && tensor.unsafeGetTensorImpl()->has_storage();
  };
  return dense(self) && dense(from);
}

const std::set<std::string> kOwn = {
    "empty.memory_format",
    "empty_strided",
    "as_strided",
    "view",
    "_reshape_alias",
    "resize_",
    "set_.source_Storage_storage_offset",
    "set_.source_Storage",
    "set_.source_Tensor",
    "set_",
    "copy_",
    "_copy_from",
    "_copy_from_and_resize",
    "_local_scalar_dense",
    "record_stream",
};

}  // namespace

bool IsOwnKernel(const std::string& name) { return kOwn.count(name) != 0; }

void ResizeStorage(const c10::Storage& storage, size_t bytes) {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  TORCH_CHECK(impl->resizable(), "Trying to resize storage that is not resizable");
  const auto guard = OnDevice(impl->device());
  c10::DataPtr made = DeviceAllocator()->allocate(bytes);
  const size_t kept = std::min(bytes, impl->nbytes());
  if (impl->data() && kept) CopyBytes(made.get(), impl->data(), kept, impl->device().index());
  impl->set_data_ptr_noswap(std::move(made));
  impl->set_nbytes(bytes);
}

void RegisterOwnKernels(torch::Library* library) {
  library->impl("empty.memory_format", TORCH_FN(Empty));
  library->impl("empty_strided", TORCH_FN(EmptyStrided));
  library->impl("as_strided", TORCH_FN(AsStrided));
  library->impl("view", TORCH_FN(View));
  library->impl("_reshape_alias", TORCH_FN(ReshapeAlias));
  library->impl("resize_", TORCH_FN(Resize));
  library->impl("set_.source_Storage_storage_offset", TORCH_FN(SetStorage));
  library->impl("set_.source_Storage", TORCH_FN(SetWholeStorage));
  library->impl("set_.source_Tensor", TORCH_FN(SetTensor));
  library->impl("set_", TORCH_FN(SetEmpty));
  library->impl("copy_", TORCH_FN(Copy));
  library->impl("_copy_from", TORCH_FN(CopyFrom));
  library->impl("_copy_from_and_resize", TORCH_FN(CopyFromAndResize));
  library->impl("_local_scalar_dense", TORCH_FN(LocalScalar));
  library->impl("record_stream", TORCH_FN(RecordStream));
  library->impl("_has_compatible_shallow_copy_type", TORCH_FN(HasCompatibleType));
}

}  // namespace anyop::torch_device
