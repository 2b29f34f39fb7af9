// SPDX-License-Identifier: Apache-2.0
// The activations of experts on the CPU, with their slopes, and where gates and ups lie in a row.
#pragma once

#include <cstring>
#include <limits>

#include "../elementwise/gelu_forms.h"
#include "anyop/cpu/rows.h"

namespace anyop::cpu {

// What a call says of its gates. Without ups both begin at the same place.
struct Gates {
  AnyopDtype dtype;
  const char* activation;
  double alpha, limit;
  bool gated;
  int64_t I, width, gate, up;  // hidden features; of a row its numbers, and where both begin
};

// kAnyopOk, or the status of a noted error.
template <typename Args>
int32_t ReadGates(const Args* args, AnyopCall* call, Gates* to) {
  const bool gated = std::strcmp(args->activation.data, "relu2") != 0;
  const int64_t width = args->A + args->B - args->H, I = gated ? width / 2 : width;
  const double most = args->limit.has ? args->limit.value : std::numeric_limits<double>::infinity();
  if (!(most > 0)) return call->fail(call, kAnyopValueError, "limit is not positive");
  *to = {AnyopDtypeOf(args->x), args->activation.data, args->alpha, most, gated, I, width, 0, 0};
  if (gated) (args->up_first ? to->gate : to->up) = I;
  return kAnyopOk;
}

// A hidden feature is Factor(gate) * (up + more); of 'relu2' Factor(gate) alone.
template <typename Wide>
struct SigmoidGate {  // 'silu'; 'swigluoai', whose `more` is 1
  Wide alpha, more;
  Wide Factor(Wide g) const { return g * Sigmoid(alpha * g); }
  Wide Slope(Wide g) const {
    const auto s = SigmoidWithSlope(alpha * g);
    const Wide v = Min(Max(alpha * g, -Bits<Wide>::kExpHigh), Bits<Wide>::kExpHigh);
    return s.value + v * s.slope;
  }
  Wide Up(Wide u) const { return u + more; }
};
template <typename Wide, typename Form>
struct GeluGate {
  Wide Factor(Wide g) const { return Form::Value(g); }
  Wide Slope(Wide g) const { return Form::Slope(g); }
  Wide Up(Wide u) const { return u; }
};
template <typename Wide>
struct Relu2Gate {
  Wide Factor(Wide g) const { return Max(g, Wide{0}) * Max(g, Wide{0}); }
  Wide Slope(Wide g) const { return 2 * Max(g, Wide{0}); }
  Wide Up(Wide) const { return 1; }
};

// Calls run(form).
template <typename Wide, typename Run>
inline void WithGate(const Gates& gates, Run run) {
  const auto is = [&](const char* name) { return !std::strcmp(gates.activation, name); };
  if (is("gelu")) return run(GeluGate<Wide, GeluErf>());
  if (is("gelu_tanh")) return run(GeluGate<Wide, GeluTanh>());
  if (is("relu2")) return run(Relu2Gate<Wide>());
  const Wide alpha = static_cast<Wide>(gates.alpha);
  run(SigmoidGate<Wide>{alpha, is("swigluoai") ? Wide{1} : Wide{0}});
}

}  // namespace anyop::cpu
