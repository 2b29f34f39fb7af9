// SPDX-License-Identifier: Apache-2.0
// Cambricon's CNRT as a runtime shaped like CUDA's: a row of the shape "cnrt".
#pragma once

#include "library.h"

namespace anyop::cuda_like {

// Fills library->api with functions that call CNRT. Returns the problem, "" when there is none.
std::string UseCnrt(Library* library);

}  // namespace anyop::cuda_like
