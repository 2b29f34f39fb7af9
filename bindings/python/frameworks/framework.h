// SPDX-License-Identifier: Apache-2.0
// What is known of a Python type that holds tensors: how its memory is borrowed and how results are
// made.
#pragma once

#include <dlpack/dlpack.h>

#include <string>

#include "anyop/kernel.h"
#include "python.h"

namespace anyop {

static_assert(sizeof(DLTensor) == sizeof(AnyopTensor) &&
                  offsetof(DLTensor, strides) == offsetof(AnyopTensor, strides) &&
                  offsetof(DLTensor, dtype) == offsetof(AnyopTensor, dtype_code),
              "an AnyopTensor is a DLTensor");

// kForeign: memory that only the framework's adapter may ask for: subclasses of torch.Tensor, JAX's
// arrays, values of Paddle's static graphs.
enum class Origin { kNumpy, kTorch, kPaddle, kCupy, kExchange, kForeign, kDlpack, kBuffer };

// How a call may go on; the worst of its tensors' ways holds.
enum class Way {
  kPlain,     // memory is the value, nobody watches
  kGradient,  // plain, and a gradient is to be recorded
  kDispatch,  // only the framework's adapter gives the framework's answer
};

struct Source {
  Origin origin;
  const DLPackExchangeAPI* api;  // kExchange, kPaddle, and kTorch since torch 2.10
  const char* adapter;           // the module whose slow_call takes what is not plain; or nullptr
};

// The source of an object's type; nullptr with *why set when it holds no tensor we take.
// What is returned stays valid: there are few sources, and they never change.
const Source* FindSource(PyObject* object, std::string* why);

// The same of a framework's own type, no user's, that has been asked for before; or nullptr. Runs
// no code of the object's.
const Source* FindOwnSource(PyTypeObject* type);

// "torch.Tensor", "numpy.ndarray", "str"
std::string TypeText(PyTypeObject* type);

// What an object of the type is, behind "is": "a torch.Tensor", "an int", "None".
std::string ObjectText(PyTypeObject* type);

}  // namespace anyop
