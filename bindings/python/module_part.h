// SPDX-License-Identifier: Apache-2.0
// What a file adds to the module _anyop by itself: functions, or a type.
#pragma once

#include <utility>

#include "python.h"

namespace anyop {

class ModulePart {
 public:
  // The last of the methods is empty.
  explicit ModulePart(PyMethodDef* methods) : methods_(methods) {}
  // Of a type that *type is to point to.
  ModulePart(PyType_Spec* spec, PyTypeObject** type) : spec_(spec), type_(type) {}

  // All parts; once. False with an error set.
  static bool AddAll(PyObject* module);

 private:
  inline static const ModulePart* first_ = nullptr;

  PyMethodDef* const methods_ = nullptr;
  PyType_Spec* const spec_ = nullptr;
  PyTypeObject** const type_ = nullptr;
  const ModulePart* const next_ = std::exchange(first_, this);
};

}  // namespace anyop
