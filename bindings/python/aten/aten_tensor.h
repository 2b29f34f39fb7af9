// SPDX-License-Identifier: Apache-2.0
// _anyop.AtenTensor: a tensor of torch's that is nobody's yet. Frameworks take it by DLPack.
#pragma once

#include <dlpack/dlpack.h>

#include "anyop/aten_call.h"
#include "python.h"

namespace anyop {

bool IsAtenTensor(PyObject* object);

// The cell of an AtenTensor.
AnyopAtenTensor* AtenTensorIn(PyObject* object);

// Takes over the tensor, also where it fails: nullptr with an error set. for_reader: whoever takes
// it never writes, so that read-only memory may go without saying so.
PyObject* NewAtenTensor(AnyopAtenTensor* tensor, bool for_reader = false);

// Its memory; the sizes hold until an operator changes them. False with an error set where it has
// none. *flags: AnyopAtenMemoryFlag.
bool ViewAtenTensor(PyObject* object, AnyopTensor* view, uint32_t* flags);

// Takes over a tensor that AnyopAtenView has viewed. Its deleter does without Python's lock; late:
// it frees nothing itself. nullptr with an error set.
DLManagedTensorVersioned* NewManaged(AnyopAtenTensor* tensor, const AnyopTensor& view,
                                     uint32_t flags, bool late);

// torch's current stream of a CUDA device; as __dlpack__ wants it. Empty with an error set.
Ref TorchStream(int index);
Ref TorchStreamAddress(int index);

}  // namespace anyop
