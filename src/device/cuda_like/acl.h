// SPDX-License-Identifier: Apache-2.0
// Ascend's ACL as a runtime shaped like CUDA's: a row of the shape "acl".
#pragma once

#include "library.h"

namespace anyop::cuda_like {

// Fills library->api with functions that call ACL. Returns the problem, "" when there is none.
std::string UseAcl(Library* library);

}  // namespace anyop::cuda_like
