// SPDX-License-Identifier: Apache-2.0
// Asked for and read without being consumed.
#include "frameworks/dlpack.h"

#include <dlpack/dlpack.h>

#include <cstring>

#include "stack.h"

namespace anyop {

PyObject* NewCapsule(PyObject* object, PyObject* stream) {
  if (!HasStack()) return nullptr;
  const Ref method(PyObject_GetAttrString(object, "__dlpack__"));
  const Ref none(PyTuple_New(0)),
      keywords(
          Py_BuildValue("{s:(ii)}", "max_version", DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION));
  if (!method || !none || !keywords) return nullptr;
  if (stream && PyDict_SetItemString(keywords.get(), "stream", stream)) return nullptr;
  PyObject* capsule = PyObject_Call(method.get(), none.get(), keywords.get());
  if (capsule || !PyErr_ExceptionMatches(PyExc_TypeError)) return capsule;
  PyErr_Clear();  // older than DLPack 1.0
  PyDict_Clear(keywords.get());
  if (stream && PyDict_SetItemString(keywords.get(), "stream", stream)) return nullptr;
  return PyObject_Call(method.get(), none.get(), keywords.get());
}

bool ReadCapsule(PyObject* capsule, bool writes, AnyopTensor* tensor, std::string* why) {
  if (auto* versioned = static_cast<DLManagedTensorVersioned*>(
          PyCapsule_IsValid(capsule, "dltensor_versioned")
              ? PyCapsule_GetPointer(capsule, "dltensor_versioned")
              : nullptr)) {
    if (versioned->version.major != DLPACK_MAJOR_VERSION) {
      *why = "speaks DLPack " + std::to_string(versioned->version.major) + ", expected 1";
      return false;
    }
    if (writes && (versioned->flags & DLPACK_FLAG_BITMASK_READ_ONLY)) {
      *why = "is read-only, and the operator would write it";
      return false;
    }
    std::memcpy(tensor, &versioned->dl_tensor, sizeof *tensor);
    return true;
  }
  if (!PyCapsule_IsValid(capsule, "dltensor")) {
    *why = "has a __dlpack__ that returned no DLPack capsule";
    return false;
  }
  if (writes) {  // the old form cannot say whether the memory is immutable, as JAX's arrays are
    *why =
        "is read-only as far as it says (DLPack before 1.0, as of JAX's immutable arrays), and the "
        "operator would write it";
    return false;
  }
  std::memcpy(tensor,
              &static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"))->dl_tensor,
              sizeof *tensor);
  return true;
}

bool IsReadOnlyCapsule(PyObject* capsule) {
  if (!PyCapsule_IsValid(capsule, "dltensor_versioned")) return true;
  auto* managed =
      static_cast<DLManagedTensorVersioned*>(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
  return managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY;
}

}  // namespace anyop
