// SPDX-License-Identifier: Apache-2.0
// Arguments of the C ABI as torch's IValues. Part of torch_aten_glue.cc.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/CPUAllocator.h>

#include <cstring>

#include "torch_aten_loans.h"
#include "torch_aten_state.h"

namespace anyop::glue {

using c10::IValue;

// The arguments of one call on their way.
struct Arguments {
  const AnyopAtenType* types;
  const AnyopAtenValue* values;
  int32_t count;
  int32_t at = 0;  // the one that is being converted: an error names it
  Loans loans = {};

  IValue Convert(int32_t number);
  // Also what the schema does not mark, where the argument that alias names says so.
  bool Writes(int32_t number) const {
    const AnyopAtenType& type = types[number];
    return type.flags & kAnyopAtenWrites ||
           (type.flags & kAnyopAtenWritesUnmarked && (type.alias < 0 || values[type.alias].as.i));
  }

 private:
  IValue One(const AnyopAtenType& type, const AnyopAtenValue& value);
  IValue List(const AnyopAtenType& type, const AnyopAtenValue& value);
  at::Tensor Tensor(const AnyopAtenType& type, const AnyopAtenValue& value);
  template <class T, class Element>
  IValue ListOf(const AnyopAtenValue& value, Element&& element);
  c10::Device DeviceOfCall() const;
};

inline c10::Scalar ToScalar(const AnyopAtenValue& value) {
  switch (value.tag) {
    case kAnyopAtenInt:
      return value.as.i;
    case kAnyopAtenFloat:
      return value.as.f;
    case kAnyopAtenBool:
      return value.as.i != 0;
    case kAnyopAtenComplex:
      return c10::complex<double>(value.as.f, value.more.imag);
    default:
      throw Refusal{kAnyopTypeError, "is no number"};
  }
}

// A number as a tensor whose dtype counts less than that of others, as torch's Python makes it.
inline at::Tensor WrappedNumber(const AnyopAtenValue& value) {
  const c10::Scalar scalar = ToScalar(value);
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), 16,
                                                       c10::GetCPUAllocator(), /*resizable=*/true);
  void* data = storage->mutable_data();
  if (value.tag == kAnyopAtenFloat) std::memcpy(data, &value.as.f, 8);
  if (value.tag == kAnyopAtenInt) std::memcpy(data, &value.as.i, 8);
  if (value.tag == kAnyopAtenBool) *static_cast<bool*>(data) = value.as.i != 0;
  if (value.tag == kAnyopAtenComplex) {
    const double parts[] = {value.as.f, value.more.imag};
    std::memcpy(data, parts, sizeof parts);
  }
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(storage)), c10::DispatchKeySet(c10::DispatchKey::CPU),
      c10::scalarTypeToTypeMeta(scalar.type()));
  made.unsafeGetTensorImpl()->set_sizes_contiguous({});
  made.unsafeGetTensorImpl()->set_wrapped_number(true);
  return made;
}

inline c10::Device ToDevice(int64_t packed) {
  const auto type = static_cast<c10::DeviceType>(packed >> 32);
  const auto index = static_cast<int32_t>(packed & 0xffffffff);
  if (!c10::isValidDeviceType(type) || packed >> 32 != static_cast<int8_t>(type) || index < -1 ||
      index > 127)
    throw Refusal{kAnyopValueError, "is no device"};
  return {type, static_cast<c10::DeviceIndex>(index)};
}

// torch looks codes up in tables without looking at their size.
inline int64_t ToInt(uint8_t kind, int64_t code) {
  const int64_t end = kind == kAnyopAtenKindDtype          ? int64_t(ScalarType::Undefined)
                      : kind == kAnyopAtenKindLayout       ? int64_t(c10::Layout::NumOptions)
                      : kind == kAnyopAtenKindMemoryFormat ? int64_t(c10::MemoryFormat::NumOptions)
                                                           : -1;
  if (end >= 0 && (code < 0 || code >= end))
    throw Refusal{kAnyopValueError, std::to_string(code) + " is no code of torch's"};
  return code;
}

inline at::Tensor Arguments::Tensor(const AnyopAtenType& type, const AnyopAtenValue& value) {
  const bool writes = type.flags & kAnyopAtenWrites;
  switch (value.tag) {
    case kAnyopAtenTorch: {
      const auto& tensor = *reinterpret_cast<const at::Tensor*>(value.as.tensor);
      if (writes && IsReadOnly(*tensor.unsafeGetTensorImpl()))
        throw Refusal{kAnyopValueError,
                      "lies in read-only memory, and the operator would write it"};
      return tensor;
    }
    case kAnyopAtenMemoryOf:
      if (writes && value.as.memory->flags & kAnyopAtenReadOnly)
        throw Refusal{kAnyopValueError, "is read-only, and the operator would write it"};
      return loans.Add(value.as.memory, writes, at);
    case kAnyopAtenNone:
      return {};
    default:
      return WrappedNumber(value);
  }
}

// Where a seed's numbers are drawn.
inline c10::Device Arguments::DeviceOfCall() const {
  for (int32_t i = 0; i < count; ++i) {
    const AnyopAtenValue* value = &values[i];
    if (value->tag == kAnyopAtenList && value->more.count) value = value->as.list;
    if (value->tag == kAnyopAtenTorch)
      return reinterpret_cast<const at::Tensor*>(value->as.tensor)->device();
    if (value->tag == kAnyopAtenMemoryOf) {
      const AnyopTensor& tensor = value->as.memory->tensor;
      return {PlaceOf(tensor.device_type).torch, static_cast<c10::DeviceIndex>(tensor.device_id)};
    }
    if (value->tag == kAnyopAtenDevice) return ToDevice(value->as.i);
  }
  return c10::DeviceType::CPU;
}

inline IValue Arguments::One(const AnyopAtenType& type, const AnyopAtenValue& value) {
  if (type.kind == kAnyopAtenKindTensor) {
    const bool none = value.tag == kAnyopAtenNone && type.flags & kAnyopAtenOptional;
    return none ? IValue() : IValue(Tensor(type, value));
  }
  switch (value.tag) {
    case kAnyopAtenNone:
      return {};
    case kAnyopAtenInt:
      return ToInt(type.kind, value.as.i);
    case kAnyopAtenFloat:
      return value.as.f;
    case kAnyopAtenBool:
      return value.as.i != 0;
    case kAnyopAtenComplex:
      return c10::complex<double>(value.as.f, value.more.imag);
    case kAnyopAtenStr:
      return std::string(value.as.s, static_cast<size_t>(value.more.count));
    case kAnyopAtenDevice:
      return ToDevice(value.as.i);
    case kAnyopAtenSeed:
      return SeededGenerator(DeviceOfCall(), static_cast<uint64_t>(value.as.i));
    case kAnyopAtenGenerator:
      return at::Generator(c10::intrusive_ptr<c10::GeneratorImpl>::reclaim_copy(
          static_cast<c10::GeneratorImpl*>(value.as.generator)));
    default:
      throw Refusal{kAnyopTypeError, "is of a kind that cannot be passed"};
  }
}

template <class T, class Element>
IValue Arguments::ListOf(const AnyopAtenValue& value, Element&& element) {
  c10::List<T> list;
  list.reserve(static_cast<size_t>(value.more.count));
  for (int64_t i = 0; i < value.more.count; ++i) list.push_back(element(value.as.list[i]));
  return list;
}

inline IValue Arguments::List(const AnyopAtenType& type, const AnyopAtenValue& value) {
  using Value = const AnyopAtenValue&;
  if (value.tag == kAnyopAtenNone) return {};
  if (value.tag != kAnyopAtenList) throw Refusal{kAnyopTypeError, "is no list"};
  switch (type.kind) {
    case kAnyopAtenKindTensor:
      if (type.flags & kAnyopAtenOptionalElements)
        return ListOf<std::optional<at::Tensor>>(value, [&](Value item) {
          return item.tag == kAnyopAtenNone ? std::optional<at::Tensor>() : Tensor(type, item);
        });
      return ListOf<at::Tensor>(value, [&](Value item) {
        if (item.tag == kAnyopAtenNone)
          throw Refusal{kAnyopTypeError, "has None among its tensors"};
        return Tensor(type, item);
      });
    case kAnyopAtenKindScalar:
      return ListOf<c10::Scalar>(value, ToScalar);
    case kAnyopAtenKindFloat:
      return ListOf<double>(value, [](Value item) { return item.as.f; });
    case kAnyopAtenKindBool:
      return ListOf<bool>(value, [](Value item) { return item.as.i != 0; });
    case kAnyopAtenKindStr:
      return ListOf<std::string>(value, [](Value item) {
        return std::string(item.as.s, static_cast<size_t>(item.more.count));
      });
    case kAnyopAtenKindDevice:
      return ListOf<c10::Device>(value, [](Value item) { return ToDevice(item.as.i); });
    case kAnyopAtenKindGenerator:
      throw Refusal{kAnyopTypeError, "is a list of a kind that cannot be passed"};
    default:
      return ListOf<int64_t>(value, [&](Value item) { return ToInt(type.kind, item.as.i); });
  }
}

inline IValue Arguments::Convert(int32_t number) {
  at = number;
  const AnyopAtenType& type = types[number];
  return type.flags & kAnyopAtenIsList ? List(type, values[number]) : One(type, values[number]);
}

}  // namespace anyop::glue
