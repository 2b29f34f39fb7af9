// SPDX-License-Identifier: Apache-2.0
// DLPack's capsules, as __dlpack__ gives them.
#pragma once

#include <string>

#include "anyop/kernel.h"
#include "python.h"

namespace anyop {

// object.__dlpack__() in the newest form that it knows. stream may be nullptr. nullptr with an
// error set.
PyObject* NewCapsule(PyObject* object, PyObject* stream);

// Reads a capsule of either form without consuming it: its destructor lets the memory go. False
// with *why set.
bool ReadCapsule(PyObject* capsule, bool writes, AnyopTensor* tensor, std::string* why);

// Whether the memory must not be written, as far as the capsule says. The old form cannot say it.
bool IsReadOnlyCapsule(PyObject* capsule);

}  // namespace anyop
