// SPDX-License-Identifier: Apache-2.0
// Python's objects for dtypes, layouts, memory formats, devices and generators, as the values that
// ATen's operators take, and back.
#pragma once

#include "../../torch_glue/torch_aten_glue.h"
#include "frameworks/torch.h"
#include "python.h"

namespace anyop {

// What is looked up in torch once.
struct TorchObjects {
  PyObject* torch = nullptr;
  PyTypeObject* named[5] = {};  // dtype, layout, memory_format, device, Generator
  WrapTensor wrap = nullptr;
  Py_ssize_t tensor_offset = 0;  // of the cell in a torch.Tensor
  bool has_glue = false;         // calls are kept from the thread's state
};
extern TorchObjects torch_objects;

// Fills torch_objects from the module torch. False with an error set.
bool InitTorchObjects(PyObject* torch);

// A dtype, layout, memory format or device. Strict: by torch's own rules, its objects and codes;
// else also by names and by other frameworks' dtypes. False without an error: it is none.
bool ToNamed(AnyopAtenKind kind, PyObject* object, bool strict, AnyopAtenValue* value);

// A torch.Generator, or a seed where not strict.
bool ToGenerator(PyObject* object, bool strict, AnyopAtenValue* value);

// The name of a code, or torch's own object. A new reference, or nullptr with an error set.
PyObject* FromNamed(AnyopAtenKind kind, const AnyopAtenValue& value, bool as_torch);

// A torch.SymInt, SymFloat or SymBool, which only torch's dispatcher understands.
bool IsSymbolic(PyObject* object);

// Any other object of torch's, as a storage or a stream, that is neither a tensor nor a name.
bool IsTorchObject(PyObject* object);

}  // namespace anyop
