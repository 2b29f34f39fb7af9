// SPDX-License-Identifier: Apache-2.0
// Functions of tvm-ffi as implementations, from Python.
#pragma once

#include "python.h"

namespace anyop {

// register_tvm_ffi_call(op, backend, name, source, when, device_type, priority, deterministic,
// text, function): function is a tvm_ffi.Function, or None where the text says how it is found.
PyObject* RegisterTvmFfiCall(PyObject*, PyObject* args);

}  // namespace anyop
