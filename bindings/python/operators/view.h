// SPDX-License-Identifier: Apache-2.0
// A tensor of a call as a Python object, for backends that are Python functions: its memory by
// DLPack and, on the CPU, by __array_interface__.
#pragma once

#include "anyop/kernel.h"
#include "python.h"

namespace anyop {

// A view of what the call owns: good only until the call ends. nullptr with an error set.
PyObject* NewView(const AnyopTensor& tensor);

// Its tensor; nullptr where the object is no view.
const AnyopTensor* TensorOfView(PyObject* object);

}  // namespace anyop
