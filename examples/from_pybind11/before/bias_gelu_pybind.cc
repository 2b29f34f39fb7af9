// SPDX-License-Identifier: Apache-2.0
// bias_gelu as a pybind11 extension of torch. One binary for each torch and each Python version.
#include <torch/extension.h>

#include "../ops/bias_gelu_rows.h"

at::Tensor BiasGelu(const at::Tensor& x, const at::Tensor& bias) {
  TORCH_CHECK(x.device().is_cpu(), "bias_gelu: x is on ", x.device(), ", expected cpu");
  TORCH_CHECK(bias.device().is_cpu(), "bias_gelu: bias is on ", bias.device(), ", expected cpu");
  TORCH_CHECK(x.scalar_type() == at::kFloat, "bias_gelu: x is ", x.scalar_type());
  TORCH_CHECK(bias.scalar_type() == at::kFloat, "bias_gelu: bias is ", bias.scalar_type());
  TORCH_CHECK(x.dim() >= 1 && bias.dim() == 1, "bias_gelu: expected x (*, D) and bias (D)");
  TORCH_CHECK(x.size(-1) == bias.size(0), "bias_gelu: bias has ", bias.sizes());
  TORCH_CHECK(x.is_contiguous() && bias.is_contiguous(), "bias_gelu: expected contiguous tensors");
  const int64_t D = bias.size(0), rows = D ? x.numel() / D : 0;
  at::Tensor out = at::empty_like(x);
  BiasGeluRows(x.const_data_ptr<float>(), bias.const_data_ptr<float>(),
               out.mutable_data_ptr<float>(), rows, D);
  return out;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) { module.def("bias_gelu", &BiasGelu); }
