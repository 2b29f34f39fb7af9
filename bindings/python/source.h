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

// kTorchOther: a subclass of torch.Tensor, which only torch's dispatcher understands.
enum class Origin { kNumpy, kTorch, kTorchOther, kExchange, kDlpack, kBuffer };

struct Source {
  PyTypeObject* type;
  Origin origin;
  const DLPackExchangeAPI* api;  // kExchange, and kTorch since torch 2.10

  bool IsTorch() const { return origin == Origin::kTorch || origin == Origin::kTorchOther; }
};

// The source of an object's type; nullptr with *why set when it holds no tensor we take.
// What is returned stays valid: sources are published once and never change.
const Source* FindSource(PyObject* object, std::string* why);

// "torch.Tensor", "numpy.ndarray", "str"
std::string TypeText(PyTypeObject* type);

}  // namespace anyop
