// SPDX-License-Identifier: Apache-2.0
// Dropout as torch's CPU kernel computes it, with random numbers of the device's own generator.
#include "kernels/dropout.h"

#include <ATen/ATen.h>

namespace anyop::torch_device {
namespace {

using at::Tensor;

// The result and the mask of what was kept.
std::tuple<Tensor, Tensor> NativeDropout(const Tensor& input, double p, std::optional<bool> train) {
  if (input.numel() == 0) return {input, at::empty_like(input)};
  const auto mask_options = input.options().dtype(at::kBool);
  if (!train.value_or(true)) return {input.clone(), at::ones_like(input, mask_options)};
  const double keep = 1 - p;
  const Tensor mask =
      at::empty_like(input, mask_options).bernoulli_(keep);  // in the order in which input lies
  return {input.mul(mask).mul_(keep == 0 ? 0.0 : 1 / keep), mask};
}

}  // namespace

void RegisterDropout(torch::Library* device) {
  device->impl("native_dropout", TORCH_FN(NativeDropout));
}

}  // namespace anyop::torch_device
