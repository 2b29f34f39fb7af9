// SPDX-License-Identifier: Apache-2.0
// Sizes and strides are copied; memory is held by the binding.
#include "call/keep_in_place.h"

#include <cstring>

namespace anyop {
namespace {

// visit(tensor) for each that was given.
template <typename Visit>
void EachTensor(Frame* frame, const Visit& visit) {
  for (uint32_t i = 0; i < frame->op->params.size(); ++i) {
    const Param& p = frame->op->params[i];
    if (!p.IsTensor()) continue;
    if (p.IsList()) {
      const auto& list = frame->Field<AnyopTensorList>(p);
      for (int64_t k = 0; k < list.count; ++k) visit(const_cast<AnyopTensor*>(&list.data[k]));
    } else if (frame->Field<const AnyopTensor*>(p)) {
      visit(&frame->tensors[i]);
    }
  }
}

}  // namespace

void KeepInPlace(Frame* frame, bool memory) {
  int64_t count = 0;
  EachTensor(frame, [&](const AnyopTensor* t) { count += t->ndim > 0 ? 2 * t->ndim : 0; });
  auto* sizes = frame->arena.Take<int64_t>(count);
  EachTensor(frame, [&](AnyopTensor* t) {
    if (t->ndim <= 0) return;
    std::memcpy(sizes, t->shape, sizeof *sizes * static_cast<size_t>(t->ndim));
    std::memcpy(sizes + t->ndim, t->strides, sizeof *sizes * static_cast<size_t>(t->ndim));
    t->shape = sizes;
    t->strides = sizes + t->ndim;
    sizes += 2 * t->ndim;
  });
  if (memory && frame->hold) frame->hold(frame);
}

}  // namespace anyop
