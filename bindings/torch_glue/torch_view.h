// SPDX-License-Identifier: Apache-2.0
// A tensor of torch's in DLPack's terms: its dtype, its place, its memory. Both glues and the
// PyTorch device read tensors by it.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include "anyop/kernel.h"

namespace anyop::glue {

struct Dtype {
  c10::ScalarType torch;
  uint8_t code, bits;  // DLPack's
};
constexpr Dtype kDtypes[] = {
    {c10::ScalarType::Float, 2, 32},
    {c10::ScalarType::BFloat16, 4, 16},
    {c10::ScalarType::Half, 2, 16},
    {c10::ScalarType::Double, 2, 64},
    {c10::ScalarType::Long, 0, 64},
    {c10::ScalarType::Int, 0, 32},
    {c10::ScalarType::Bool, 6, 8},
    {c10::ScalarType::Byte, 1, 8},
    {c10::ScalarType::Char, 0, 8},
    {c10::ScalarType::Short, 0, 16},
    {c10::ScalarType::ComplexFloat, 5, 64},
    {c10::ScalarType::ComplexDouble, 5, 128},
    {c10::ScalarType::ComplexHalf, 5, 32},
    {c10::ScalarType::UInt16, 1, 16},
    {c10::ScalarType::UInt32, 1, 32},
    {c10::ScalarType::UInt64, 1, 64},
    {c10::ScalarType::Float8_e4m3fn, 10, 8},
    {c10::ScalarType::Float8_e4m3fnuz, 11, 8},
    {c10::ScalarType::Float8_e5m2, 12, 8},
    {c10::ScalarType::Float8_e5m2fnuz, 13, 8},
    {c10::ScalarType::Float8_e8m0fnu, 14, 8},
};
constexpr uint8_t kOpaque = 3;  // a code that nobody takes: of dtypes that DLPack has not

struct Place {
  int32_t dlpack;
  c10::DeviceType torch;
  c10::DispatchKey key;
};
constexpr int32_t kNowhere = 0;  // a meta tensor's place: a shape without memory
constexpr Place kPlaces[] = {
    // of two for one device, the first is what views say
    {1, c10::DeviceType::CPU, c10::DispatchKey::CPU},
#ifdef USE_ROCM
    {10, c10::DeviceType::CUDA, c10::DispatchKey::CUDA},
#else
    {2, c10::DeviceType::CUDA, c10::DispatchKey::CUDA},
    {13, c10::DeviceType::CUDA, c10::DispatchKey::CUDA},  // managed
#endif
    {12, c10::DeviceType::PrivateUse1, c10::DispatchKey::PrivateUse1},
    {3, c10::DeviceType::CPU, c10::DispatchKey::CPU},  // pinned
    {kNowhere, c10::DeviceType::Meta, c10::DispatchKey::Meta},
};

// The row for which is(row); nullptr: none.
template <class Row, size_t N, class Is>
const Row* FindRow(const Row (&rows)[N], const Is& is) {
  for (const Row& row : rows)
    if (is(row)) return &row;
  return nullptr;
}

inline const Dtype* FindDtype(c10::ScalarType type) {
  return FindRow(kDtypes, [&](const Dtype& row) { return row.torch == type; });
}
inline const Dtype* FindDtype(const AnyopTensor& of) {
  return FindRow(kDtypes, [&](const Dtype& row) {
    return row.bits == of.dtype_bits && row.code == of.dtype_code && of.dtype_lanes == 1;
  });
}
inline const Place* FindPlace(c10::DeviceType type) {
  return FindRow(kPlaces, [&](const Place& row) { return row.torch == type; });
}
inline const Place* FindPlace(int32_t dlpack) {
  return FindRow(kPlaces, [&](const Place& row) { return row.dlpack == dlpack; });
}

// The CPU and meta have no index.
inline c10::Device DeviceAt(const Place& place, int32_t index) {
  const bool indexed = place.torch != c10::DeviceType::CPU && place.torch != c10::DeviceType::Meta;
  return {place.torch, indexed ? static_cast<c10::DeviceIndex>(index) : c10::DeviceIndex{-1}};
}

inline void SetSizes(const c10::TensorImpl& impl, AnyopTensor* view) {
  const c10::IntArrayRef sizes = impl.sizes();
  view->ndim = static_cast<int32_t>(sizes.size());
  view->shape = const_cast<int64_t*>(sizes.data());
  view->strides = const_cast<int64_t*>(impl.strides().data());
}

enum class Memory {
  kNone,   // nothing to look at, or on a device that has no place here
  kShort,  // the storage ends before the tensor does, as one that was shrunk
  kWhole,
};

inline Memory MemoryOf(const c10::TensorImpl& impl, const AnyopTensor& view, int64_t itemsize,
                       size_t storage_bytes) {
  if (impl.numel() == 0) return Memory::kWhole;
  int64_t last = impl.storage_offset();
  for (int32_t d = 0; d < view.ndim; ++d) last += (view.shape[d] - 1) * view.strides[d];
  return static_cast<uint64_t>((last + 1) * itemsize) <= storage_bytes ? Memory::kWhole
                                                                       : Memory::kShort;
}

// In the glue each call has some of these: inline, as a call each would be a hundredth of them.
// Sizes and strides are the tensor's own; with Memory::kNone nothing is filled. Throws where torch
// says that the memory must not be looked at.
[[gnu::always_inline]] inline Memory FillView(const c10::TensorImpl& impl, bool writes,
                                              AnyopTensor* view) {
  const Dtype* dtype = FindDtype(c10::typeMetaToScalarType(impl.dtype()));
  const c10::Device device = impl.device();
  const Place* place = FindPlace(device.type());
  if (!impl.has_storage() || !place) return Memory::kNone;
  c10::StorageImpl& storage = *impl.unsafe_storage().unsafeGetStorageImpl();
  const auto itemsize = static_cast<int64_t>(impl.itemsize());
  SetSizes(impl, view);
  const Memory memory = MemoryOf(impl, *view, itemsize, storage.nbytes());
  // A lazily copied storage becomes one of its own only when it is written.
  void* data = place->dlpack == kNowhere ? nullptr
               : writes                  ? storage.mutable_data()
                                         : const_cast<void*>(storage.data());
  view->data = data ? static_cast<char*>(data) + impl.storage_offset() * itemsize : nullptr;
  view->device_type = place->dlpack;
  view->device_id = device.has_index() ? device.index() : 0;
  view->dtype_code = dtype ? dtype->code : kOpaque;
  view->dtype_bits = dtype ? dtype->bits : static_cast<uint8_t>(itemsize * 8);
  view->dtype_lanes = 1;
  view->byte_offset = 0;
  return memory;
}

}  // namespace anyop::glue
