// SPDX-License-Identifier: Apache-2.0
// Where torch's Python objects keep their tensor, found by asking them.
#pragma once

#include "python.h"

namespace anyop {

// A list of tensors that no mode of this thread sees; empty with an error set.
Ref PlainSamples(PyObject* torch, Py_ssize_t count);

// Offset of the TensorImpl's address in a torch.Tensor; 0 when torch does not keep it as it did
// since 1.9.
Py_ssize_t FindTensorOffset(PyObject* torch);

// libtorch_python's function that wraps a tensor as a Python object (a new reference); nullptr when
// there is none.
using WrapTensor = PyObject* (*)(void* const* impl);
WrapTensor FindWrapTensor();

}  // namespace anyop
