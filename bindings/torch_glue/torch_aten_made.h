// SPDX-License-Identifier: Apache-2.0
// What ATen made as a tensor that a caller is given. Part of torch_aten_glue.cc.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/AutogradState.h>

#include "torch_aten_memory.h"
#include "torch_aten_view.h"

namespace anyop::glue {

inline c10::IntArrayRef SizesOf(const AnyopTensor& tensor) {
  return {tensor.shape, static_cast<size_t>(tensor.ndim)};
}

inline bool IsRowMajor(const AnyopTensor& tensor) {
  int64_t stride = 1;
  for (int32_t d = tensor.ndim; tensor.strides && d-- > 0; stride *= tensor.shape[d])
    if (tensor.shape[d] != 1 && tensor.strides[d] != stride) return false;
  return true;
}

// Row by row, all of a memory that nothing else has, and what is there is its value.
inline bool HasAllOfItsMemory(const at::Tensor& tensor) {
  return tensor.storage().unique() && tensor.is_contiguous() && !tensor.storage_offset() &&
         tensor.nbytes() == tensor.storage().nbytes() && !tensor.is_conj() && !tensor.is_neg() &&
         !tensor._is_zerotensor();
}

inline void CopyTo(const at::Tensor& to, at::Tensor&& from, torch::jit::Stack* stack) {
  static const c10::OperatorHandle copy =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  stack->emplace_back(to);
  stack->emplace_back(std::move(from));
  stack->emplace_back(false);
  copy.callBoxed(*stack);
}

inline at::Tensor NewLike(const AnyopTensor& like) {
  static const c10::OperatorHandle empty =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::empty", "memory_format");
  torch::jit::Stack stack{c10::List<int64_t>(SizesOf(like)),
                          static_cast<int64_t>(DtypeOf(like).torch),
                          c10::IValue(),
                          DeviceOf(like),
                          c10::IValue(),
                          c10::IValue()};
  empty.callBoxed(stack);
  return stack[0].toTensor();
}

// A tensor that only the caller has, of the dtype and on the device of like. In inference mode it
// is made as all are there.
inline c10::intrusive_ptr<c10::TensorImpl> Own(at::Tensor&& from, const AnyopTensor& like,
                                               bool inference) {
  const ScalarType dtype = DtypeOf(like).torch;
  const bool is_own = from.use_count() == 1 && HasAllOfItsMemory(from) &&
                      from.scalar_type() == dtype && from.device().type() == DeviceOf(like).type();
  if (!is_own) {
    at::Tensor made = NewLike(like);
    torch::jit::Stack stack;
    CopyTo(made, std::move(from), &stack);
    from = std::move(made);
  }
  if (!inference) return from.unsafeReleaseIntrusivePtr();
  c10::AutogradState& state = c10::AutogradState::get_tls_state();
  state.set_inference_mode(true);
  auto impl = c10::make_intrusive<c10::TensorImpl>(
      c10::Storage(from.storage()), c10::DispatchKeySet(PlaceOf(like.device_type).key),
      c10::scalarTypeToTypeMeta(dtype));
  state.set_inference_mode(false);
  impl->set_sizes_contiguous(SizesOf(like));
  return impl;
}

}  // namespace anyop::glue
