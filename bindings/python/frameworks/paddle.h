// SPDX-License-Identifier: Apache-2.0
// Paddle's eager tensors as memory, and the word whether a call may use that memory or the adapter
// must have it.
#pragma once

#include <string>

#include "../../paddle_glue/paddle_glue.h"
#include "frameworks/framework.h"
#include "python.h"

namespace anyop {

// Finds what the loaded paddle offers: the glue, else what its Python attributes say; once. False
// with *why set when it is too old.
bool InitPaddleGuard(PyObject* paddle, std::string* why);

// Opens a glue library and checks that it is for this Paddle and this anyop. It is never closed.
// nullptr with *why set.
const AnyopPaddleGlue* OpenPaddleGlueLibrary(const char* path, const char* version,
                                             std::string* why);

// paddle.Tensor itself and a layer's parameters; other subclasses are the adapter's.
bool IsPlainPaddleType(PyTypeObject* type);

// What holds for all tensors of one call. *records: gradients may be recorded.
Way ReadPaddleMode(bool* records);

// Gives the thread Paddle's tracer where Paddle is in use. A thread that has not called Paddle yet
// has none, and its first call goes by the adapter, which wakes it; an explanation goes nowhere
// else.
void WakePaddleThread();

// Fills tensor and says how the call may go on; *why is set when the tensor cannot be used.
Way ViewPaddleTensor(const Source* source, PyObject* object, bool records, AnyopTensor* tensor,
                     std::string* why);

// The operator has written the tensor: its version goes up, so that autograd finds out.
void MarkPaddleWritten(PyObject* object);

// A new tensor of tensor's dtype, shape and device, by the glue or by Paddle's Python; sets its
// data. *status is an AnyopStatus. False where Paddle's exchange functions must make it: see
// anyop/_paddle_memory.py for why they are the last resort.
bool NewPaddleTensor(const Source* source, AnyopTensor* tensor, PyObject** object, int32_t* status);

}  // namespace anyop
