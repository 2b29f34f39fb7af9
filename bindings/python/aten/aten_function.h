// SPDX-License-Identifier: Apache-2.0
// ATen's operators as Python callables.
#pragma once

#include "python.h"

namespace anyop {

// aten_open, aten_function and aten_resolve, for the module.
extern PyMethodDef aten_methods[];

// The type of the callables; nullptr with an error set.
PyObject* MakeAtenFunctionType();

}  // namespace anyop
