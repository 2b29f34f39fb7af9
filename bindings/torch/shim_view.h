// SPDX-License-Identifier: Apache-2.0
// A tensor of torch's in DLPack's terms, by torch's C shim: what torch_glue/torch_view.h is for
// those that have torch's headers.
#pragma once

#include "anyop/kernel.h"
#include "shim.h"

namespace anyop::torch {

// Sizes and strides are the tensor's own. False where torch tells no memory. A dtype that no
// operator has is opaque.
bool FillView(const Shim& shim, TensorHandle handle, AnyopTensor* view);

// torch's code of a device of DLPack's.
int32_t DeviceCode(const Shim& shim, int32_t dlpack);

// Of torch's code; kAnyopNoDtype where no operator has it.
int DtypeOfCode(const Shim& shim, int32_t code);

}  // namespace anyop::torch
