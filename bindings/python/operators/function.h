// SPDX-License-Identifier: Apache-2.0
// One operator as a Python function.
#pragma once

#include "operator/operator.h"
#include "python.h"

namespace anyop {

// The operator of that name; nullptr with an error raised.
Operator* FindByName(PyObject* name);

// A new built-in function that calls op; nullptr with an error raised.
PyObject* NewFunction(const Operator* op);

// anyop.InternalError, anyop.DeviceError and anyop.DeclinedError; made once by the module.
extern PyObject* internal_error;
extern PyObject* device_error;
extern PyObject* declined_error;

// None, or what the last call of anyop's C functions failed with as an error.
PyObject* NoneOrError(int32_t status);

// Raises the exception that stands for an AnyopStatus.
ErrorSet RaiseStatus(int32_t status, const char* message);

}  // namespace anyop
