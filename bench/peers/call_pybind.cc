// SPDX-License-Identifier: Apache-2.0
// The peer of bench/call.py: anyop's own rms_norm kernel behind pybind11 with torch's headers.
#include <torch/extension.h>

#include "anyop/ops/rms_norm.h"

namespace {

AnyopTensor View(const torch::Tensor& t) {
  return {t.data_ptr(),
          1,
          0,
          static_cast<int32_t>(t.dim()),
          2,
          32,
          1,
          const_cast<int64_t*>(t.sizes().data()),
          const_cast<int64_t*>(t.strides().data()),
          0};
}

void Run(const torch::Tensor& x, const torch::Tensor& weight, torch::Tensor& out, double eps) {
  TORCH_CHECK(x.is_contiguous() && weight.is_contiguous() && out.is_contiguous(),
              "contiguous tensors expected");
  TORCH_CHECK(x.scalar_type() == torch::kFloat && weight.scalar_type() == torch::kFloat,
              "float32 expected");
  TORCH_CHECK(x.dim() > 0 && x.size(-1) == weight.size(0) && out.sizes() == x.sizes(),
              "shapes do not fit");
  const AnyopTensor views[] = {View(x), View(weight)};
  AnyopTensor result = View(out);
  const int64_t D = x.size(-1);
  const RmsNormArgs args = {{sizeof(RmsNormArgs), 1}, &views[0], &views[1], eps, &result, D,
                            x.numel() / (D ? D : 1)};
  AnyopCall call = {};
  call.size = sizeof call;
  call.device_type = 1;
  call.parallel = [](AnyopCall*, int64_t count, int64_t, AnyopBody body, void* context) {
    body(context, 0, count);
  };
  TORCH_CHECK(anyop_rms_norm_cpu(&args, &call) == 0, "the kernel failed");
}

torch::Tensor RmsNormOut(const torch::Tensor& x, const torch::Tensor& weight, torch::Tensor out,
                         double eps) {
  Run(x, weight, out, eps);
  return out;
}

torch::Tensor RmsNorm(const torch::Tensor& x, const torch::Tensor& weight, double eps) {
  torch::Tensor out = torch::empty_like(x);
  Run(x, weight, out, eps);
  return out;
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  using pybind11::arg;
  module.def("rms_norm_out", &RmsNormOut, arg("x"), arg("weight"), arg("out"), arg("eps") = 1e-6);
  module.def("rms_norm", &RmsNorm, arg("x"), arg("weight"), arg("eps") = 1e-6);
}
