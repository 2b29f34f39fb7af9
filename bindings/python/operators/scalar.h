// SPDX-License-Identifier: Apache-2.0
// Python's numbers, strings and dtypes into the fields of a frame.
#pragma once

#include <string>

#include "call/call.h"
#include "python.h"

namespace anyop {

// Raises kind with "op: parameter why" and returns false.
bool Refuse(const Operator& op, const Param& p, PyObject* kind, const std::string& why);

// Writes a value or a list of values (anything but tensors). False with an error raised.
// Strings and lists point into objects that the caller holds, or into the frame's arena.
bool SetScalar(Frame* frame, const Param& p, PyObject* object);

}  // namespace anyop
