// SPDX-License-Identifier: Apache-2.0
// Tensors of torch's over memory of others for the time of a call, and what becomes of those that
// outlive it. Part of torch_aten_glue.cc.
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <string>
#include <utility>

#include "torch_aten_glue.h"
#include "torch_view.h"

namespace anyop::glue {

using c10::ScalarType;

// A status and its text on the way to call's catch.
struct Refusal {
  int32_t status;
  std::string text;
  int32_t argument = -1;  // whose; -1: the one that is being converted
};

inline std::string ShapeText(c10::IntArrayRef shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + ")";
}

// What a storage that outlives its call holds: one for each owner of its memory.
struct Escape {
  void* owner;
  void (*release)(void* owner);
  bool read_only;
  Escape* next;
};

inline void ReleaseEscape(void* pointer) {
  for (auto* escape = static_cast<Escape*>(pointer); escape;) {
    if (escape->release) escape->release(escape->owner);
    delete std::exchange(escape, escape->next);
  }
}

// Whether memory was lent as read-only, by an earlier call.
inline bool IsReadOnly(const c10::TensorImpl& impl) {
  if (!impl.has_storage()) return false;
  const c10::DataPtr& data =
      impl.unsafe_storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  return data.get_deleter() == ReleaseEscape &&
         static_cast<const Escape*>(data.get_context())->read_only;
}

// Bytes from the first element to behind the last; refuses what no memory can be.
inline int64_t ExtentBytes(const AnyopTensor& tensor, int64_t itemsize) {
  int64_t last = 0, numel = 1;
  bool empty = false, overflow = false;
  for (int32_t i = 0; i < tensor.ndim; ++i) {
    const int64_t size = tensor.shape[i], stride = tensor.strides ? tensor.strides[i] : 0;
    if (size < 0) throw Refusal{kAnyopValueError, "has a negative size"};
    if (stride < 0)
      throw Refusal{kAnyopValueError, "has a negative stride, which torch does not have"};
    empty |= size == 0;
    int64_t step = 0;
    overflow |= __builtin_mul_overflow(numel, size, &numel);
    overflow |= size > 0 && (__builtin_mul_overflow(size - 1, stride, &step) ||
                             __builtin_add_overflow(last, step, &last));
  }
  if (empty) return 0;
  int64_t bytes = 0;
  const int64_t elements = tensor.strides ? last : numel - 1;
  overflow |= __builtin_add_overflow(elements, 1, &bytes) ||
              __builtin_mul_overflow(bytes, itemsize, &bytes);
  if (overflow) throw Refusal{kAnyopValueError, "has more elements than memory can have"};
  return bytes;
}

inline const Dtype& DtypeOf(const AnyopTensor& tensor) {
  if (const Dtype* dtype = FindDtype(tensor)) return *dtype;
  throw Refusal{kAnyopTypeError, "has a dtype that torch does not have"};
}

inline const Place& PlaceOf(int32_t device_type) {
  if (const Place* place = FindPlace(device_type)) return *place;
  throw Refusal{kAnyopTypeError, "lies on a device that torch does not have"};
}

inline c10::Device DeviceOf(const AnyopTensor& tensor) {
  return DeviceAt(PlaceOf(tensor.device_type), tensor.device_id);
}

// torch's own start on a device, once: memory alone does not bring it about, and some kernels die
// without. In torch_aten_glue.cc.
void StartCuda(c10::Device device);

// Over memory that is not torch's, so that nothing resizes it.
inline c10::Storage NewStorage(int64_t bytes, void* data, c10::Device device) {
  const c10::StorageImpl::use_byte_size_t in_bytes;
  if (device.type() == c10::DeviceType::PrivateUse1)  // may have a storage of its own
    return c10::Storage(c10::make_storage_impl(in_bytes, bytes, c10::DataPtr(data, device), nullptr,
                                               /*resizable=*/false, device));
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      in_bytes, bytes, c10::DataPtr(data, device), nullptr, /*resizable=*/false));
}

inline c10::intrusive_ptr<c10::TensorImpl> TensorOver(const AnyopTensor& tensor) {
  if (tensor.ndim < 0 || tensor.ndim > 64)
    throw Refusal{kAnyopValueError, "has " + std::to_string(tensor.ndim) + " dimensions"};
  const Dtype& dtype = DtypeOf(tensor);
  const Place& place = PlaceOf(tensor.device_type);
  const int64_t itemsize = dtype.bits / 8, bytes = ExtentBytes(tensor, itemsize);
  char* data = static_cast<char*>(tensor.data);
  if (data) data += tensor.byte_offset;
  const bool meta = place.dlpack == kNowhere;
  if (!meta && !data && bytes) throw Refusal{kAnyopValueError, "has elements but no memory"};
  if (!meta && bytes && reinterpret_cast<uintptr_t>(data) % itemsize)
    throw Refusal{kAnyopValueError, "is not aligned to its elements"};
  const c10::Device device = DeviceOf(tensor);
  if (device.is_cuda()) StartCuda(device);
  auto impl = c10::make_intrusive<c10::TensorImpl>(NewStorage(bytes, meta ? nullptr : data, device),
                                                   c10::DispatchKeySet(place.key),
                                                   c10::scalarTypeToTypeMeta(dtype.torch));
  const c10::IntArrayRef sizes(tensor.shape, static_cast<size_t>(tensor.ndim));
  if (tensor.strides)
    impl->set_sizes_and_strides(sizes, c10::IntArrayRef(tensor.strides, sizes.size()));
  else
    impl->set_sizes_contiguous(sizes);
  return impl;
}

}  // namespace anyop::glue
