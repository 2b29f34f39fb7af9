// SPDX-License-Identifier: Apache-2.0
// A tensor's memory as others see it. Part of torch_aten_glue.cc.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "torch_aten_memory.h"
#include "torch_aten_state.h"

namespace anyop::glue {

// A call of an operator that takes and gives one tensor.
inline at::Tensor Through(const char* name, const at::Tensor& tensor) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  torch::jit::Stack stack{tensor};
  if (op.schema().arguments().size() > 1) stack.emplace_back();  // clone's memory_format
  op.callBoxed(stack);
  return stack.at(0).toTensor();
}

inline const char* WhyNoMemory(const at::Tensor& tensor) {
  if (!tensor.defined()) return "the tensor is undefined";
  const c10::DispatchKeySet keys = tensor.key_set();
  if (tensor.layout() != c10::kStrided || keys.has(c10::DispatchKey::NestedTensor))
    return "the tensor is sparse, nested or of another layout than strided: no memory is its value";
  if (keys.has(c10::DispatchKey::Quantized)) return "the tensor is quantized";
  if (keys.has_any(c10::DispatchKeySet(
          {c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper,
           c10::DispatchKey::Functionalize, c10::DispatchKey::Python})))
    return "the tensor is one of a transform or a subclass: it has no memory of its own";
  return tensor.has_storage() ? nullptr : "the tensor has no memory";
}

inline void Resolve(at::Tensor* tensor) {
  if (!tensor->is_conj() && !tensor->is_neg() && !tensor->_is_zerotensor()) return;
  const PlainState plain;
  if (tensor->_is_zerotensor()) *tensor = Through("aten::clone", *tensor);
  if (tensor->is_conj()) *tensor = Through("aten::resolve_conj", *tensor);
  if (tensor->is_neg()) *tensor = Through("aten::resolve_neg", *tensor);
}

inline void ViewOf(at::Tensor& tensor, AnyopTensor* view, uint32_t* flags) {
  if (const char* why = WhyNoMemory(tensor)) throw Refusal{kAnyopTypeError, why};
  if (!FindDtype(tensor.scalar_type()))
    throw Refusal{kAnyopTypeError,
                  std::string("DLPack has no dtype for ") + c10::toString(tensor.scalar_type())};
  if (!FindPlace(tensor.device().type()))
    throw Refusal{kAnyopTypeError, "the tensor lies on " + tensor.device().str()};
  Resolve(&tensor);
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const bool found = FillView(impl, /*writes=*/true, view) != Memory::kNone;
  const bool meta = found && view->device_type == kNowhere;
  if (!found || (!meta && !view->data && impl.numel()))
    throw Refusal{kAnyopTypeError, "the tensor's memory is gone"};
  *flags = IsReadOnly(impl) ? kAnyopAtenReadOnly : 0;
  if (meta)
    throw Refusal{kAnyopTypeError, "the tensor is a meta tensor: it has a shape, no memory"};
}

}  // namespace anyop::glue
