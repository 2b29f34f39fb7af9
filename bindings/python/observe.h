// SPDX-License-Identifier: Apache-2.0
// Counts the calls that arrive at kernels, whichever framework they come from.
#pragma once

#include "python.h"

namespace anyop {

// observe(name): from now on the calls of this operator's kernels are counted.
PyObject* Observe(PyObject*, PyObject* name);

// kernel_calls(name): [(backend, calls, address, library, offset)], one for each kind of device;
// calls is None where the operator is not observed.
PyObject* KernelCalls(PyObject*, PyObject* name);

}  // namespace anyop
