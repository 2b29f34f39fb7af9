// SPDX-License-Identifier: Apache-2.0
// scaled_dot_product_attention as torch runs it on the inner device: torch's composite takes other
// kernels for a device that it does not know by name.
#include "kernels/attention.h"

#include <ATen/ATen.h>
#include <ATen/SDPBackend.h>
#include <ATen/ops/_fused_sdp_choice_ops.h>
#include <torch/library.h>

#include <cmath>

#include "kernels/wrappers.h"
#include "routes/overload.h"

namespace anyop::torch_device {
namespace {

using at::Tensor;
using std::optional;

struct Attended {
  const Tensor &query, &key, &value;
  const optional<Tensor>& mask;
  double dropout;
  bool causal;
  optional<double> scale;
  bool grouped;
};

bool NeedsGradient(const Attended& a) {
  return at::GradMode::is_enabled() &&
         (a.query.requires_grad() || a.key.requires_grad() || a.value.requires_grad());
}

// What torch would take for these tensors on the inner device.
at::SDPBackend Choose(const Attended& a) {
  if (a.query.key_set().has(c10::DispatchKey::Python))
    return at::SDPBackend::math;  // no memory to look at
  static const auto* facts =
      MakeOverload(c10::Dispatcher::singleton().findSchemaOrThrow("aten::_fused_sdp_choice", ""));
  Call call(*facts);
  const bool gradient = NeedsGradient(a);
  const auto wrap = [&](const Tensor& tensor) {  // the choice looks at requires_grad
    const Tensor& inner = call.In(tensor);
    return gradient && tensor.requires_grad() ? inner.detach().requires_grad_() : inner;
  };
  const Tensor query = wrap(a.query), key = wrap(a.key), value = wrap(a.value);
  const optional<Tensor> mask =
      a.mask && a.mask->defined() ? optional<Tensor>(wrap(*a.mask)) : std::nullopt;
  return static_cast<at::SDPBackend>(at::_ops::_fused_sdp_choice::redispatch(
      platform->inner_keys, query, key, value, mask, a.dropout, a.causal, a.scale, a.grouped));
}

// A bool mask as the numbers that are added, as torch converts it.
optional<Tensor> MaskAsNumbers(const optional<Tensor>& mask, at::ScalarType dtype,
                               at::SDPBackend backend) {
  if (!mask || !mask->defined()) return std::nullopt;
  if (mask->scalar_type() != at::kBool) return mask;
  const double low = backend == at::SDPBackend::cudnn_attention
                         ? -65504.0
                         : -std::numeric_limits<double>::infinity();
  return at::zeros_like(*mask, mask->options().dtype(dtype)).masked_fill_(mask->logical_not(), low);
}

Tensor PadLast(const Tensor& tensor, int64_t multiple) {
  const int64_t rest = tensor.size(-1) % multiple;
  return rest ? at::constant_pad_nd(tensor, {0, multiple - rest}) : tensor;
}

Tensor Flash(const Attended& a, const optional<Tensor>& mask) {
  if (platform->inner == c10::DeviceType::CPU) {
    return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(
        a.query, a.key, a.value, a.dropout, a.causal, mask, a.scale));
  }
  const int64_t size = a.query.size(-1);
  const double scale = a.scale.value_or(1.0 / std::sqrt(static_cast<double>(size)));
  const Tensor out = std::get<0>(at::_scaled_dot_product_flash_attention(
      PadLast(a.query, 8), PadLast(a.key, 8), PadLast(a.value, 8), a.dropout, a.causal,
      /*return_debug_mask=*/false, scale));
  return out.size(-1) == size ? out : out.narrow(-1, 0, size);
}

// Its kernels read the mask in rows of 16.
Tensor Efficient(const Attended& a, optional<Tensor> mask) {
  if (mask) {
    const int64_t length = mask->size(-1);
    if (length % 16) mask = PadLast(*mask, 16).narrow(-1, 0, length);
    mask = mask->expand({a.query.size(0), a.query.size(1), a.query.size(2), a.key.size(2)});
  }
  return std::get<0>(at::_scaled_dot_product_efficient_attention(
      a.query, a.key, a.value, mask, NeedsGradient(a), a.dropout, a.causal, a.scale));
}

Tensor Attention(const Tensor& query, const Tensor& key, const Tensor& value,
                 const optional<Tensor>& mask, double dropout, bool causal, optional<double> scale,
                 bool grouped) {
  const Attended a{query, key, value, mask, dropout, causal, scale, grouped};
  const at::SDPBackend backend = Choose(a);
  const optional<Tensor> numbers = MaskAsNumbers(mask, query.scalar_type(), backend);
  switch (backend) {
    case at::SDPBackend::flash_attention:
      return Flash(a, numbers);
    case at::SDPBackend::efficient_attention:
      return Efficient(a, numbers);
    case at::SDPBackend::cudnn_attention:
      return std::get<0>(at::_scaled_dot_product_cudnn_attention(
          query, key, value, numbers, NeedsGradient(a), dropout, causal, false, scale));
    default:
      return std::get<0>(at::_scaled_dot_product_attention_math(
          query, key, value, numbers, dropout, causal, std::nullopt, scale, grouped));
  }
}

}  // namespace

void RegisterAttention(torch::Library* device, torch::Library* autograd) {
  device->impl("scaled_dot_product_attention", TORCH_FN(Attention));
  autograd->impl("scaled_dot_product_attention", TORCH_FN(Attention));
}

}  // namespace anyop::torch_device
