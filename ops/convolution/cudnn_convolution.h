// SPDX-License-Identifier: Apache-2.0
// Convolutions on CUDA by graphs of cuDNN's.
#pragma once

#include "cudnn_graph.h"

namespace anyop::cudnn {

// kAnyopDeclined where cuDNN is missing, or more kinds of convolutions come than are kept. *taken
// is false, nothing was done, and why says the reason, where no engine takes the graph.
int32_t Convolve(AnyopCall* call, const Convolution& convolution, bool* taken, const char** why);

}  // namespace anyop::cudnn
