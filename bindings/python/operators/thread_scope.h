// SPDX-License-Identifier: Apache-2.0
// The scope of the calling thread or task as an attribute, which torch.compile can read and guard.
#pragma once

#include "python.h"

namespace anyop {

// The type _anyop.ThreadScope; nullptr with an error set.
PyObject* MakeThreadScopeType();

}  // namespace anyop
