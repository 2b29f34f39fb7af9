// SPDX-License-Identifier: Apache-2.0
// torch's tensors as memory, and what of torch its own operators and Python kernels need.
#pragma once

#include <string>

#include "../../torch_glue/torch_glue.h"
#include "frameworks/framework.h"
#include "frameworks/torch_tensor.h"

namespace anyop {

extern const Framework torch_framework;

// The glue for the loaded torch (anyop.native.glues builds it or finds it built), nullptr where
// there is none.
const AnyopTorchGlue* LoadTorchGlue();

// Whether torch's thread is in a mode, so that only torch.ops gives torch's answer.
bool IsTorchInMode(PyObject* torch);

// What makes torch's Python tensors over memory; borrowed, for ever.
struct TorchLender {
  const AnyopTorchGlue* glue = nullptr;
  WrapTensor wrap = nullptr;
  PyObject* torch = nullptr;  // the module
};
// False where torch is not loaded or there is no glue for it.
bool FindTorchLender(TorchLender* lender);

}  // namespace anyop
