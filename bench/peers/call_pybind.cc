// SPDX-License-Identifier: Apache-2.0
// The peer of bench/calls/call.py and bench/calls/torch_call.py: anyop's own kernels behind
// pybind11 with torch's headers.
#include <torch/extension.h>

#include "rms_norm_peer.h"

namespace {

torch::Tensor RmsNormOut(const torch::Tensor& x, const torch::Tensor& weight, torch::Tensor out,
                         double eps) {
  peer::RunRmsNorm(x, weight, out, eps);
  return out;
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  using pybind11::arg;
  module.def("rms_norm_out", &RmsNormOut, arg("x"), arg("weight"), arg("out"), arg("eps") = 1e-6);
  module.def("rms_norm", &peer::RmsNorm, arg("x"), arg("weight"), arg("eps") = 1e-6);
  module.def("rms_norm_backward", &peer::RmsNormBackward, arg("grad_out"), arg("x"), arg("weight"),
             arg("eps") = 1e-6);
}
