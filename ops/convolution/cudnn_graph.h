// SPDX-License-Identifier: Apache-2.0
// A convolution, and what is done to its sums, as one graph of cuDNN's, and the plan of an engine
// that runs it.
#pragma once

#include "cudnn.h"

namespace anyop::cudnn {

enum class Pass : int { kForward, kGradImages, kGradWeight };

// Images N H W C by windows K R S C, channels last; results N P Q K.
struct Sizes {
  int64_t N, H, W, C, K, R, S, P, Q, stride, padding, dilation;
};

// What a graph computes, and where its tensors lie. Of each pass one of x, weight, y is written,
// with the dtype `result`; the others have `dtype`. All start at multiples of 16 bytes. Behind the
// sums of the forward pass come, where they are there and in this order, scale, bias, residual and
// relu, all in float32.
struct Convolution {
  Sizes sizes = {};
  Pass pass = Pass::kForward;
  AnyopDtype dtype = kAnyopNoDtype, result = kAnyopNoDtype;
  void *x = nullptr, *weight = nullptr, *y = nullptr;
  const void *scale = nullptr, *bias = nullptr, *residual = nullptr;
  bool relu = false;
  bool tf32 = false;  // float32 may be rounded to TF32 first
};

// An engine's plan; kept for ever, with the descriptors that it was made of.
struct Plan {
  Descriptor plan = nullptr;  // nullptr: no engine takes the graph
  int64_t workspace = 0;      // bytes
  char why[400] = "";         // of no engine
};

// Asks the heuristics, then the list that always works. Allocates by no means but cuDNN's.
void MakePlan(const Library& library, Handle handle, const Convolution& convolution, Plan* plan);

// Starts it on the handle's stream; cuDNN's status.
int Execute(const Library& library, Handle handle, const Plan& plan, const Convolution& convolution,
            void* workspace);

}  // namespace anyop::cudnn
