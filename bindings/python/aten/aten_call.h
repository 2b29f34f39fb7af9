// SPDX-License-Identifier: Apache-2.0
// A call of an ATen operator from Python.
#pragma once

#include "aten/aten_match.h"

namespace anyop {

// args: positional arguments, then the values of keywords. A new reference; nullptr with an error
// raised.
PyObject* CallAten(const AtenPacket& packet, PyObject* const* args, Py_ssize_t num_positional,
                   PyObject* keywords);

// The full name of the overload that the call would take.
PyObject* ResolveAten(const AtenPacket& packet, PyObject* const* args, Py_ssize_t num_positional,
                      PyObject* keywords);

}  // namespace anyop
