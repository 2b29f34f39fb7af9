// SPDX-License-Identifier: Apache-2.0
// torch's tensors as memory, and the word whether a call may use that memory or torch's dispatcher
// must have it.
#pragma once

#include <string>

#include "../../torch_glue/torch_glue.h"
#include "frameworks/framework.h"
#include "frameworks/torch_tensor.h"
#include "python.h"

namespace anyop {

// The glue for the loaded torch (anyop.native.glues builds it or finds it built), nullptr where
// there is none.
const AnyopTorchGlue* LoadTorchGlue();

// Finds what the loaded torch offers: the glue, else what its Python attributes say; once. False
// with *why set when there is neither.
bool InitTorchGuard(PyObject* torch, std::string* why);

// call_below_dispatcher(function, args, kwargs): for Python kernels, which torch's dispatcher has
// called. Modes, profilers and gradients have had their say, so calls inside look at tensors alone.
PyObject* CallBelowDispatcher(PyObject*, PyObject* args);
// Inside of such a call, in this thread. Paddle's executor calls the nodes of its graphs so, too.
bool IsBelowDispatcher();

// What holds for all tensors of one call.
struct TorchMode {
  const AnyopTorchGlue* glue;
  int32_t flags;       // AnyopTorchFlag
  bool below = false;  // the dispatcher, which has called a Python kernel
};
Way ReadTorchMode(TorchMode* mode);

// Fills tensor and says how the call may go on. An error of Python's may be set with
// Way::kDispatch; what is dispatched again will meet it again. AnyopTorchRefusal(mode.flags)
// says why the tensor cannot be used.
Way ViewTorchTensor(const Source* source, PyObject* object, bool writes, TorchMode* mode,
                    AnyopTensor* tensor);

// The operator has written the tensor: its version goes up, so that autograd finds out.
void MarkTorchWritten(const TorchMode& mode, PyObject* object);

// A new tensor of tensor's device, dtype and shape by the glue; nullptr with an error set.
PyObject* NewTorchTensor(const TorchMode& mode, AnyopTensor* tensor);

// An owned c10::TensorImpl as an object; nullptr with an error set.
PyObject* WrapTorchTensor(const TorchMode& mode, void* impl);

// By the glue: the address of its c10::TensorImpl.
void* TorchTensorImpl(PyObject* object);

// What makes torch's Python tensors over memory; borrowed, for ever.
struct TorchLender {
  const AnyopTorchGlue* glue = nullptr;
  WrapTensor wrap = nullptr;
  PyObject* torch = nullptr;  // the module
};
// False where torch is not loaded or there is no glue for it.
bool FindTorchLender(TorchLender* lender);

}  // namespace anyop
