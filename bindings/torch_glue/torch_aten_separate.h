// SPDX-License-Identifier: Apache-2.0
// What an operator writes must not be what it reads from another argument: torch's kernels differ
// in what they do then, by CPU and by version. Part of torch_aten_glue.cc.
#pragma once

#include <ATen/core/enum_tag.h>

#include "torch_aten_arguments.h"
#include "torch_aten_overlap.h"
#include "torch_aten_view.h"

namespace anyop::glue {

// One tensor among the arguments on the stack; item: its place in the argument's list, or -1.
struct Operand {
  at::Tensor tensor;
  int32_t argument;
  int64_t item;
  bool writes;
  Extent extent;
  bool copied = false;
};
using Operands = c10::SmallVector<Operand, 8>;

inline void AddOperand(const IValue& value, int32_t argument, int64_t item, bool writes,
                       Operands* operands) {
  if (!value.isTensor()) return;
  const at::Tensor& tensor = value.toTensor();
  if (WhyNoMemory(tensor)) return;
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const auto* data = static_cast<const char*>(
      impl.unsafe_storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get());
  if (!data || impl.numel() == 0) return;
  const auto item_bytes = static_cast<int64_t>(impl.itemsize());
  operands->push_back({tensor, argument, item, writes,
                       Extent(data + impl.storage_offset() * item_bytes, impl.sizes().data(),
                              impl.strides().data(), impl.dim(), item_bytes)});
}

// An elementwise kernel reads an element before it writes it, and no other: tested for all that
// torch tags so (tests/conformance/aten/overlap_test.py).
inline bool IsSafe(const Operand& written, const Operand& read, bool elementwise) {
  return elementwise && written.extent.Equals(read.extent) &&
         written.tensor.scalar_type() == read.tensor.scalar_type() &&
         written.tensor.is_conj() == read.tensor.is_conj() &&
         written.tensor.is_neg() == read.tensor.is_neg();
}

inline void JudgePair(const Operand& written, Operand* other, bool elementwise) {
  if (!written.extent.Meets(other->extent)) return;
  if (!other->writes) {
    other->copied |= !IsSafe(written, *other, elementwise);
  } else if (&written < other && written.extent.SharesElements(other->extent)) {
    throw Refusal{kAnyopValueError,
                  "shares memory with another argument, and the operator would write both",
                  other->argument};
  }
}

// Whether a storage that is written lies where another argument's does: of most calls none, which
// is found without a list of them. What is written to or beside lists is not looked at here.
inline bool MayMeet(const Arguments& arguments, const std::vector<IValue>& stack) {
  struct Span {
    const char *begin, *end;
  };
  const auto span_of = [](const IValue& value) -> Span {
    c10::StorageImpl* storage =
        value.isTensor()
            ? value.toTensor().unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()
            : nullptr;
    const auto* data =
        storage ? static_cast<const char*>(storage->_mutable_data_ptr_no_checks().get()) : nullptr;
    return {data, data ? data + storage->nbytes() : nullptr};
  };
  for (int32_t i = 0; i < arguments.count; ++i) {
    if (!arguments.Writes(i)) continue;
    const Span written = span_of(stack[static_cast<size_t>(i)]);
    for (int32_t k = 0; k < arguments.count; ++k) {
      if (arguments.types[k].kind != kAnyopAtenKindTensor) continue;
      const IValue& value = stack[static_cast<size_t>(k)];
      if (value.isList()) return true;
      const Span other = span_of(value);
      if (i != k && written.begin < other.end && other.begin < written.end) return true;
    }
  }
  return false;
}

// Copies what is read and shares memory with what is written, in the stack; refuses where two are
// written in the same place.
inline void Separate(const c10::OperatorHandle& op, const Arguments& arguments,
                     std::vector<IValue>& stack) {
  if (!MayMeet(arguments, stack)) return;
  if (op.operator_name().name == "aten::set_") return;  // takes the other's memory, writes none
  Operands operands;
  for (int32_t i = 0; i < arguments.count; ++i) {
    if (arguments.types[i].kind != kAnyopAtenKindTensor) continue;
    const IValue& value = stack[static_cast<size_t>(i)];
    if (!value.isList())
      AddOperand(value, i, -1, arguments.Writes(i), &operands);
    else
      for (const IValue& item : value.toListRef())
        AddOperand(item, i, &item - value.toListRef().data(), arguments.Writes(i), &operands);
  }
  std::sort(operands.begin(), operands.end(),
            [](const Operand& a, const Operand& b) { return a.extent.begin < b.extent.begin; });
  const bool elementwise = op.hasTag(at::Tag::pointwise);
  for (Operand *first = operands.begin(), *last; first != operands.end(); first = last) {
    const char* end = first->extent.end;
    for (last = first + 1; last != operands.end() && last->extent.begin < end; ++last)
      end = std::max(end, last->extent.end);
    for (Operand* written = first; last - first > 1 && written != last; ++written)
      for (Operand* other = first; written->writes && other != last; ++other)
        if (other != written) JudgePair(*written, other, elementwise);
  }
  for (const Operand& operand : operands) {
    if (!operand.copied) continue;
    at::Tensor copy = Through("aten::clone", operand.tensor);
    IValue& value = stack[static_cast<size_t>(operand.argument)];
    if (operand.item < 0)
      value = std::move(copy);
    else if (value.isTensorList())
      value.toTensorList().set(static_cast<size_t>(operand.item), std::move(copy));
    else
      value.toOptionalTensorList().set(static_cast<size_t>(operand.item), std::move(copy));
  }
}

}  // namespace anyop::glue
