// SPDX-License-Identifier: Apache-2.0
// What Python asks about the kernels that run.
#pragma once

#include "python.h"

namespace anyop {

// observe(name): from now on the calls of this operator's kernels are counted.
PyObject* Observe(PyObject*, PyObject* name);

// kernel_calls(name): [(implementation, calls, address, library, offset)] of those that are ready;
// calls is None where the operator is not observed.
PyObject* KernelCalls(PyObject*, PyObject* name);

}  // namespace anyop
