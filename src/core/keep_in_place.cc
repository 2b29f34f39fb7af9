// SPDX-License-Identifier: Apache-2.0
// Sizes and strides are copied; memory is held by the binding.
#include "keep_in_place.h"

#include <cstring>

namespace anyop {
namespace {

void OwnSizes(Frame* frame, AnyopTensor* t) {
  if (t->ndim <= 0) return;
  auto* sizes = frame->arena.Take<int64_t>(int64_t{2} * t->ndim);
  std::memcpy(sizes, t->shape, sizeof *sizes * static_cast<size_t>(t->ndim));
  std::memcpy(sizes + t->ndim, t->strides, sizeof *sizes * static_cast<size_t>(t->ndim));
  t->shape = sizes;
  t->strides = sizes + t->ndim;
}

}  // namespace

void KeepInPlace(Frame* frame, bool memory) {
  for (uint32_t i = 0; i < frame->op->params.size(); ++i) {
    const Param& p = frame->op->params[i];
    if (!p.IsTensor()) continue;
    if (p.IsList()) {
      const auto& list = frame->Field<AnyopTensorList>(p);
      for (int64_t k = 0; k < list.count; ++k)
        OwnSizes(frame, const_cast<AnyopTensor*>(&list.data[k]));
    } else if (frame->Field<const AnyopTensor*>(p)) {
      OwnSizes(frame, &frame->tensors[i]);
    }
  }
  if (memory && frame->hold) frame->hold(frame);
}

}  // namespace anyop
