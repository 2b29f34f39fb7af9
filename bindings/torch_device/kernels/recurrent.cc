// SPDX-License-Identifier: Apache-2.0
// The fused cells of LSTM and GRU by torch's elementwise operators, as torch's CPU cells compute
// them; gradients come from these operators.
#include "kernels/recurrent.h"

#include <ATen/ATen.h>

namespace anyop::torch_device {
namespace {

using at::Tensor;
using Bias = std::optional<Tensor>;

Tensor WithBias(const Tensor& gates, const Bias& bias) {
  return bias && bias->defined() ? gates + *bias : gates;
}

Tensor NoWorkspace(const Tensor& like) { return at::empty({0}, like.options()); }

// Hochreiter & Schmidhuber 1997; gates in the order input, forget, cell, output.
std::tuple<Tensor, Tensor, Tensor> LstmCell(const Tensor& input, const Tensor& hidden,
                                            const Tensor& cell, const Bias& input_bias,
                                            const Bias& hidden_bias) {
  const auto gates =
      (WithBias(hidden, hidden_bias) + WithBias(input, input_bias)).unsafe_chunk(4, 1);
  const Tensor next_cell = gates[1].sigmoid() * cell + gates[0].sigmoid() * gates[2].tanh();
  return {gates[3].sigmoid() * next_cell.tanh(), next_cell, NoWorkspace(cell)};
}

// Cho et al. 2014; gates in the order reset, input, new.
std::tuple<Tensor, Tensor> GruCell(const Tensor& input, const Tensor& hidden, const Tensor& state,
                                   const Bias& input_bias, const Bias& hidden_bias) {
  const auto from_input = WithBias(input, input_bias).unsafe_chunk(3, 1);
  const auto from_hidden = WithBias(hidden, hidden_bias).unsafe_chunk(3, 1);
  const Tensor reset = (from_hidden[0] + from_input[0]).sigmoid();
  const Tensor update = (from_hidden[1] + from_input[1]).sigmoid();
  const Tensor fresh = (from_input[2] + from_hidden[2] * reset).tanh();
  return {(state - fresh) * update + fresh, NoWorkspace(state)};
}

}  // namespace

void RegisterRecurrent(torch::Library* device, torch::Library* autograd) {
  for (torch::Library* library : {device, autograd}) {
    library->impl("_thnn_fused_lstm_cell", TORCH_FN(LstmCell));
    library->impl("_thnn_fused_gru_cell", TORCH_FN(GruCell));
  }
}

}  // namespace anyop::torch_device
