// SPDX-License-Identifier: Apache-2.0
// How gradients of what was not broadcast are written, on the CPU and on CUDA.
#pragma once

#include "anyop/kernel.h"

namespace anyop {

// The result, seen with the shape of grad, which has as many elements; both are contiguous.
inline AnyopTensor ShapedAs(const AnyopTensor* result, const AnyopTensor* grad) {
  AnyopTensor view = *result;
  view.ndim = grad->ndim;
  view.shape = grad->shape;
  view.strides = grad->strides;
  return view;
}

}  // namespace anyop
