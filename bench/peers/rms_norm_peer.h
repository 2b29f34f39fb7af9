// SPDX-License-Identifier: Apache-2.0
// anyop's own kernels of rms_norm and its backward, called as an extension with torch's headers
// would: what the peers of bench/calls/call.py and bench/calls/torch_call.py share.
#pragma once

#include <torch/torch.h>

#include <vector>

#include "anyop/ops/rms_norm.h"
#include "anyop/ops/rms_norm_backward.h"

namespace peer {

inline AnyopTensor View(const torch::Tensor& t) {
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

inline AnyopCall MakeCall() {
  AnyopCall call = {};
  call.size = sizeof call;
  call.device_type = 1;
  call.workspace = [](AnyopCall*, int64_t bytes) -> void* {
    static thread_local std::vector<double> memory;
    memory.resize(static_cast<size_t>(bytes) / 8 + 16);
    return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
  };
  call.parallel = [](AnyopCall*, int64_t count, int64_t, AnyopBody body, void* context) {
    body(context, 0, count);
  };
  return call;
}

inline void Check(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& out) {
  TORCH_CHECK(x.is_contiguous() && weight.is_contiguous() && out.is_contiguous(),
              "contiguous tensors expected");
  TORCH_CHECK(x.scalar_type() == torch::kFloat && weight.scalar_type() == torch::kFloat &&
                  out.scalar_type() == torch::kFloat,
              "float32 expected");
  TORCH_CHECK(x.dim() > 0 && x.size(-1) == weight.size(0) && out.sizes() == x.sizes(),
              "shapes do not fit");
}

inline void RunRmsNorm(const torch::Tensor& x, const torch::Tensor& weight, torch::Tensor& out,
                       double eps) {
  Check(x, weight, out);
  const AnyopTensor views[] = {View(x), View(weight)};
  AnyopTensor result = View(out);
  const int64_t D = x.size(-1);
  RmsNormArgs args = {};
  args.base = {sizeof(RmsNormArgs), 1};
  args.x = &views[0];
  args.weight = &views[1];
  args.eps = eps;
  args.out = &result;
  args.D = D;
  args.rows = x.numel() / (D ? D : 1);
  AnyopCall call = MakeCall();
  TORCH_CHECK(anyop_rms_norm_cpu(&args, &call) == 0, "the kernel failed");
}

inline torch::Tensor RmsNorm(const torch::Tensor& x, const torch::Tensor& weight, double eps) {
  torch::Tensor out = torch::empty_like(x);
  RunRmsNorm(x, weight, out, eps);
  return out;
}

inline std::tuple<torch::Tensor, torch::Tensor> RmsNormBackward(const torch::Tensor& grad_out,
                                                                const torch::Tensor& x,
                                                                const torch::Tensor& weight,
                                                                double eps) {
  Check(x, weight, grad_out);
  torch::Tensor grad_x = torch::empty_like(x), grad_weight = torch::empty_like(weight);
  const AnyopTensor views[] = {View(grad_out), View(x), View(weight)};
  AnyopTensor results[] = {View(grad_x), View(grad_weight)};
  const int64_t D = x.size(-1);
  RmsNormBackwardArgs args = {};
  args.base = {sizeof(RmsNormBackwardArgs), 1};
  args.grad_out = &views[0];
  args.x = &views[1];
  args.weight = &views[2];
  args.eps = eps;
  args.grad_x = &results[0];
  args.grad_weight = &results[1];
  args.D = D;
  args.rows = x.numel() / (D ? D : 1);
  AnyopCall call = MakeCall();
  TORCH_CHECK(anyop_rms_norm_backward_cpu(&args, &call) == 0, "the kernel failed");
  return {grad_x, grad_weight};
}

}  // namespace peer
