// SPDX-License-Identifier: Apache-2.0
// Kernels without boxing for the C++ signatures that most overloads share: one template for all
// overloads of a signature.
#pragma once

#include <torch/library.h>

#include "routes/overload.h"

namespace anyop::torch_device {

// Registers the overload by its signature; false when that is none of the known ones.
bool RegisterUnboxed(Overload* overload, torch::Library* library);

}  // namespace anyop::torch_device
