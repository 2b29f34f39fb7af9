// SPDX-License-Identifier: Apache-2.0
// rotary as a pybind11 extension of torch. One binary for each torch and each Python version.
#include <torch/extension.h>

#include "rotary.h"

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  using at::Tensor;
  module.def("rotary", [](const Tensor& x, const Tensor& cos, const Tensor& sin) {
    return Turn(x, cos, sin, 1);
  });
  module.def("rotary_backward", [](const Tensor& grad, const Tensor& cos, const Tensor& sin) {
    return Turn(grad, cos, sin, -1);
  });
}
