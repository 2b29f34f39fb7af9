// SPDX-License-Identifier: Apache-2.0
// Paddle's eager tensors as memory, and the word whether a call may use that memory or the adapter
// must have it.
#pragma once

#include <string>

#include "python.h"
#include "source.h"

namespace anyop {

// Finds what the loaded paddle offers; once. False with *why set when it is too old.
bool InitPaddleGuard(PyObject* paddle, std::string* why);

// paddle.Tensor itself and a layer's parameters; other subclasses are the adapter's.
bool IsPlainPaddleType(PyTypeObject* type);

// What holds for all tensors of one call. *records: gradients are being recorded.
Way ReadPaddleMode(bool* records);

// Fills tensor and says how the call may go on; *why is set when the tensor cannot be used.
Way ViewPaddleTensor(const Source* source, PyObject* object, bool records, AnyopTensor* tensor,
                     std::string* why);

// The operator has written the tensor: its version goes up, so that autograd finds out.
void MarkPaddleWritten(PyObject* object);

}  // namespace anyop
