// SPDX-License-Identifier: Apache-2.0
// The CPU kernel of rotary as a torch extension has it: checks, allocation and dtypes by hand.
#ifndef PORT_BEFORE_ROTARY_H_
#define PORT_BEFORE_ROTARY_H_

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>

inline void CheckRotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  TORCH_CHECK(x.dim() >= 2, "rotary: x must have at least two dimensions");
  TORCH_CHECK(x.size(-1) % 2 == 0, "rotary: the last dimension of x must be even");
  TORCH_CHECK(cos.dim() == 2 && cos.size(0) == x.size(-2) && cos.size(1) * 2 == x.size(-1),
              "rotary: cos has shape ", cos.sizes(), ", x has ", x.sizes());
  TORCH_CHECK(sin.sizes() == cos.sizes(), "rotary: sin has shape ", sin.sizes());
  TORCH_CHECK(cos.scalar_type() == x.scalar_type() && sin.scalar_type() == x.scalar_type(),
              "rotary: dtypes differ");
  TORCH_CHECK(x.device().is_cpu() && cos.device().is_cpu() && sin.device().is_cpu(),
              "rotary: CPU tensors expected");
}

// direction: 1 turns forward, -1 back.
inline at::Tensor Turn(const at::Tensor& input, const at::Tensor& cos_in, const at::Tensor& sin_in,
                       int direction) {
  CheckRotary(input, cos_in, sin_in);
  const at::Tensor x = input.contiguous(), cos = cos_in.contiguous(), sin = sin_in.contiguous();
  at::Tensor out = at::empty_like(x);
  const int64_t T = cos.size(0), D = cos.size(1), rows = D ? x.numel() / (2 * D) : 0;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "rotary", [&] {
    using Wide = at::opmath_type<scalar_t>;
    const auto *from = x.const_data_ptr<scalar_t>(), *c = cos.const_data_ptr<scalar_t>(),
               *s = sin.const_data_ptr<scalar_t>();
    auto* to = out.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, rows, 32768 / (2 * D + 1) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t at = row * 2 * D, angle = row % T * D;
        for (int64_t d = 0; d < D; ++d) {
          const Wide a = from[at + d], b = from[at + D + d];
          const Wide cosine = c[angle + d], sine = Wide(direction) * Wide(s[angle + d]);
          to[at + d] = static_cast<scalar_t>(a * cosine - b * sine);
          to[at + D + d] = static_cast<scalar_t>(b * cosine + a * sine);
        }
      }
    });
  });
  return out;
}

#endif  // PORT_BEFORE_ROTARY_H_
