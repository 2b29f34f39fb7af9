// SPDX-License-Identifier: Apache-2.0
// The activations of experts on CUDA, with their slopes, and where gates and ups lie in a row.
#pragma once

#include <cstring>
#include <limits>

#include "../linear/activation_cuda.h"
#include "anyop/cuda.h"

namespace anyop::cuda {
namespace {

enum class Gate : int { kSilu, kGelu, kGeluTanh, kRelu2, kSwigluOai };

// What a call says of its gates. Without ups both begin at the same place.
struct Gates {
  Gate kind;
  float alpha, limit;
  int64_t I, width, gate, up;  // hidden features; of a row its numbers, and where both begin
};

inline Gate ReadGate(const char* name) {
  constexpr const char* kNames[] = {"silu", "gelu", "gelu_tanh", "relu2", "swigluoai"};
  int i = 0;
  while (i < 4 && std::strcmp(name, kNames[i]) != 0) ++i;
  return static_cast<Gate>(i);
}

// kAnyopOk, or the status of a noted error.
template <typename Args>
int32_t ReadGates(const Args* args, AnyopCall* call, Gates* to) {
  const Gate kind = ReadGate(args->activation.data);
  const int64_t width = args->A + args->B - args->H, I = kind == Gate::kRelu2 ? width : width / 2;
  const float limit = args->limit.has ? static_cast<float>(args->limit.value)
                                      : std::numeric_limits<float>::infinity();
  if (!(limit > 0)) return call->fail(call, kAnyopValueError, "limit is not positive");
  *to = {kind, static_cast<float>(args->alpha), limit, I, width, 0, 0};
  if (kind != Gate::kRelu2) (args->up_first ? to->gate : to->up) = I;
  return kAnyopOk;
}

// A hidden feature is factor * up, of 'relu2' factor alone. NaN stays NaN.
struct HiddenFeature {
  float factor, up, slope;            // slope: of factor, by the gate
  bool gate_is_beyond, up_is_beyond;  // the limit: its derivative is 0

  __device__ HiddenFeature(const Gates& p, float g, float u)
      : gate_is_beyond(g > p.limit), up_is_beyond(u > p.limit || u < -p.limit) {
    if (gate_is_beyond) g = p.limit;
    up = u > p.limit ? p.limit : u < -p.limit ? -p.limit : u;
    if (p.kind == Gate::kGelu) {
      factor = GeluErfForm::Value(g), slope = GeluErfForm::Slope(g);
    } else if (p.kind == Gate::kGeluTanh) {
      factor = GeluTanhForm::Value(g), slope = GeluTanhForm::Slope(g);
    } else if (p.kind == Gate::kRelu2) {
      const float v = ReluForm::Value(g);
      factor = v * v, slope = 2 * v, up = 1;
    } else {
      const Sigmoid<float> s(p.alpha * g);
      factor = g * s.value, slope = s.value + Bounded(p.alpha * g, 88) * s.slope;
      if (p.kind == Gate::kSwigluOai) up += 1;
    }
  }
  __device__ float Value() const { return factor * up; }
};

}  // namespace
}  // namespace anyop::cuda
