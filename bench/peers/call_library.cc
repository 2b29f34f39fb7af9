// SPDX-License-Identifier: Apache-2.0
// The peer of bench/calls/torch_call.py: anyop's own kernel as a hand-written operator of torch's
// dispatcher.
#include <torch/library.h>

#include "rms_norm_peer.h"

namespace {

void RmsNormOut(const torch::Tensor& x, const torch::Tensor& weight, double eps,
                torch::Tensor& out) {
  peer::RunRmsNorm(x, weight, out, eps);
}

}  // namespace

TORCH_LIBRARY(anyop_peer, library) {
  library.def("rms_norm(Tensor x, Tensor weight, float eps=1e-6) -> Tensor");
  library.def("rms_norm.out(Tensor x, Tensor weight, float eps=1e-6, *, Tensor(a!) out) -> ()");
}

TORCH_LIBRARY_IMPL(anyop_peer, CPU, library) {
  library.impl("rms_norm", &peer::RmsNorm);
  library.impl("rms_norm.out", &RmsNormOut);
}
