// SPDX-License-Identifier: Apache-2.0
// rotary as operators of torch, by TORCH_LIBRARY. One binary for each torch version.
#include <torch/library.h>

#include "rotary.h"

namespace {

at::Tensor Rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  return Turn(x, cos, sin, 1);
}

at::Tensor RotaryBackward(const at::Tensor& grad, const at::Tensor& cos, const at::Tensor& sin) {
  return Turn(grad, cos, sin, -1);
}

}  // namespace

TORCH_LIBRARY(before, library) {
  library.def("rotary(Tensor x, Tensor cos, Tensor sin) -> Tensor");
  library.def("rotary_backward(Tensor grad_out, Tensor cos, Tensor sin) -> Tensor");
}

TORCH_LIBRARY_IMPL(before, CPU, library) {
  library.impl("rotary", &Rotary);
  library.impl("rotary_backward", &RotaryBackward);
}
