// SPDX-License-Identifier: Apache-2.0
// Errors on their way through torch's C++ back to Python, of the right kind.
#pragma once

#include <cstdint>

#include "python.h"

namespace anyop {

// An AnyopTorchRaise.
void RaiseThroughTorch(int32_t status, const char* message);

// keep_torch_error(exception): what a Python kernel raises below a kernel of ours. torch's C shim
// would lose it; the next kAnyopPending of this thread raises it again.
PyObject* KeepTorchError(PyObject*, PyObject* exception);

}  // namespace anyop
