// SPDX-License-Identifier: Apache-2.0
// Calls the typed functions of the sample operators; typed_calls.txt says what must reach the C
// ABI.
#include <cstdio>

#include "acme/ops.h"
#include "anyop/ops.h"
using anyop::Tensor;
static void CallHeld(const Tensor& x, const Tensor& w, const Tensor& y) {
  const anyop::HeldMultiTensorAdam adam;
  adam({x, w}, {x, w}, {y, y});
  adam({}, {}, {}, std::vector<Tensor>{x}, 1, {0.5});
}
int main() {
  float data[64] = {};
  const Tensor x = Tensor::View(data, {2, 3}), w = Tensor::View(data, {3}),
               y = Tensor::View(data, {2, 3, 1});
  anyop::rms_norm(x, w);
  const Tensor out = anyop::rms_norm(x, w, 0.5, y, data);
  std::printf("same %d\n", out.get() == y.get());
  anyop::layer_norm(x, {}, w);
  const auto [values, indices] = anyop::topk(x, 4, false);
  std::printf("made %d %d\n", static_cast<bool>(values), values.get() != indices.get());
  anyop::attention(x, x, x, {}, 0.25, true);
  anyop::cast(x, kAnyopBFloat16);
  anyop::softmax_as(x);
  anyop::softmax_as(x, kAnyopFloat64);
  anyop::conv_nhwc(x, w);
  anyop::conv_nhwc(x, w, {3, 4}, 5);
  const anyop::DropoutBackwardResults none = anyop::dropout_backward(x, w);
  const anyop::DropoutBackwardResults one = anyop::dropout_backward(x, w, {}, Tensor());
  std::printf("wanted %d %d %d\n", static_cast<bool>(none.dx), static_cast<bool>(one.dx),
              static_cast<bool>(one.dmask));
  anyop::multi_tensor_adam({x, w}, {x, w}, {y, y});
  anyop::multi_tensor_adam({}, {}, {}, std::vector<Tensor>{x}, 1, {0.5}, std::nullopt, 7,
                           std::vector<int64_t>{1, 2}, "m", {"a", ""}, kAnyopBool, {},
                           {true, false, true}, 3, 0.5, "t", {9});
  CallHeld(x, w, y);
  acme::odd(x, 1, 2, w);
  acme::index_put(x, {w, std::nullopt, Tensor()}, y);
  try {
    anyop::silu(Tensor::View(data, {1, 1, 1, 1, 1, 1, 1}));
  } catch (const anyop::Error& error) {
    std::printf("error %d %s\n", error.status(), error.what());
  }
  try {
    anyop::relu(x);
  } catch (const anyop::Error& error) {
    std::printf("error %s\n", error.what());
  }
  try {
    anyop::gelu(x, std::string("a\0b", 3));
  } catch (const anyop::Error& error) {
    std::printf("error %s\n", error.what());
  }
  try {
    anyop::multi_tensor_adam({x, Tensor()}, {}, {});
  } catch (const anyop::Error& error) {
    std::printf("error %s\n", error.what());
  }
  try {
    Tensor().shape();
  } catch (const anyop::Error& error) {
    std::printf("error %s\n", error.what());
  }
  try {
    x.data<double>();
  } catch (const anyop::Error& error) {
    std::printf("error %s\n", error.what());
  }
  std::printf("view %d %d %d %d\n", x.dtype(), x.ndim(), (int)x.size(1), (int)x.get()->strides[0]);
}
