// SPDX-License-Identifier: Apache-2.0
// One operator as a Python function.
#pragma once

#include "operator.h"
#include "python.h"

namespace anyop {

// A new built-in function that calls op; nullptr with an error raised.
PyObject* NewFunction(const Operator* op);

// anyop.InternalError and anyop.DeviceError; made once by the module.
extern PyObject* internal_error;
extern PyObject* device_error;

// Raises the exception that stands for an AnyopStatus.
void RaiseStatus(int32_t status, const char* message);

}  // namespace anyop
