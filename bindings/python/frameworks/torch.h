// SPDX-License-Identifier: Apache-2.0
// torch's tensors as memory, and what of torch its own operators and Python kernels need.
#pragma once

#include <string>

#include "../../torch_glue/torch_glue.h"
#include "frameworks/framework.h"

namespace anyop {

extern const Framework torch_framework;

// The glue for the loaded torch (anyop.native.glues builds it or finds it built), nullptr where
// there is none.
const AnyopTorchGlue* LoadTorchGlue();

// Whether torch's thread is in a mode, so that only torch.ops gives torch's answer.
bool IsTorchInMode(PyObject* torch);

// ---- where torch's Python objects keep their tensor, found by asking them (torch_tensor.cc) ----

// A list of tensors that no mode of this thread sees; empty with an error set.
Ref PlainSamples(PyObject* torch, Py_ssize_t count);

// Offset of the TensorImpl's address in a torch.Tensor; 0 when torch does not keep it as it did
// since 1.9.
Py_ssize_t FindTensorOffset(PyObject* torch);

// libtorch_python's function that wraps a tensor as a Python object (a new reference); nullptr when
// there is none.
using WrapTensor = PyObject* (*)(void* const* impl);
WrapTensor FindWrapTensor();

// What makes torch's Python tensors over memory; borrowed, for ever.
struct TorchLender {
  const AnyopTorchGlue* glue = nullptr;
  WrapTensor wrap = nullptr;
  PyObject* torch = nullptr;  // the module
};
// False where torch is not loaded or there is no glue for it.
bool FindTorchLender(TorchLender* lender);

}  // namespace anyop
