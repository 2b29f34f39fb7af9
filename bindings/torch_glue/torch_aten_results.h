// SPDX-License-Identifier: Apache-2.0
// What torch returns as values of the C ABI. Part of torch_aten_glue.cc.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdlib>
#include <cstring>

#include "torch_aten_memory.h"

namespace anyop::glue {

using c10::IValue;

inline void Drop(AnyopAtenValue* value) {
  if (value->tag == kAnyopAtenTorch) delete reinterpret_cast<at::Tensor*>(value->as.tensor);
  if (value->tag == kAnyopAtenStr) std::free(const_cast<char*>(value->as.s));
  if (value->tag == kAnyopAtenList) {
    for (int64_t i = 0; i < value->more.count; ++i) Drop(&value->as.list[i]);
    std::free(value->as.list);
  }
  *value = {};
}

inline void* Allocate(size_t bytes) {
  void* memory = std::malloc(bytes);
  if (!memory) throw std::bad_alloc();
  return memory;
}

inline void ToValue(IValue&& from, AnyopAtenValue* to);

inline void ToList(c10::ArrayRef<IValue> from, AnyopAtenValue* to) {
  to->tag = kAnyopAtenList;
  if (from.empty()) return;
  to->as.list = static_cast<AnyopAtenValue*>(Allocate(from.size() * sizeof(AnyopAtenValue)));
  for (const IValue& item : from) {  // count grows with what is there, for Drop
    AnyopAtenValue& value = to->as.list[to->more.count];
    value = {};
    ToValue(IValue(item), &value);
    ++to->more.count;
  }
}

inline void ToNumber(const c10::Scalar& from, AnyopAtenValue* to) {
  if (from.isBoolean()) {
    to->tag = kAnyopAtenBool;
    to->as.i = from.toBool();
  } else if (from.isComplex()) {
    const auto number = from.toComplexDouble();
    to->tag = kAnyopAtenComplex;
    to->as.f = number.real();
    to->more.imag = number.imag();
  } else if (from.isFloatingPoint()) {
    to->tag = kAnyopAtenFloat;
    to->as.f = from.toDouble();
  } else {
    to->tag = kAnyopAtenInt;
    to->as.i = from.toLong();
  }
}

// *to is None, and holds what Drop can free if this throws.
inline void ToValue(IValue&& from, AnyopAtenValue* to) {
  if (from.isTensor()) {
    at::Tensor tensor = std::move(from).toTensor();
    if (!tensor.defined()) return;
    to->as.tensor = reinterpret_cast<AnyopAtenTensor*>(new at::Tensor(std::move(tensor)));
    to->tag = kAnyopAtenTorch;
  } else if (from.isList()) {
    ToList(from.toListRef(), to);
  } else if (from.isString()) {
    const std::string& text = from.toStringRef();
    to->as.s =
        static_cast<char*>(std::memcpy(Allocate(text.size() + 1), text.c_str(), text.size() + 1));
    to->more.count = static_cast<int64_t>(text.size());
    to->tag = kAnyopAtenStr;
  } else if (from.isDevice()) {
    const c10::Device device = from.toDevice();
    to->tag = kAnyopAtenDevice;
    to->as.i = int64_t{static_cast<int8_t>(device.type())} << 32 |
               static_cast<uint32_t>(int32_t{device.index()});
  } else if (from.isScalar()) {
    ToNumber(from.toScalar(), to);
  } else if (!from.isNone()) {
    throw Refusal{kAnyopNotImplemented, "a result is a " + from.tagKind()};
  }
}

}  // namespace anyop::glue
