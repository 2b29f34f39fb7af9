// SPDX-License-Identifier: Apache-2.0
// What a file adds to the module _anyop by itself, functions or a type, what stands around its
// functions, and the module's exceptions.
#pragma once

#include <exception>
#include <new>
#include <type_traits>
#include <utility>

#include "operator/operator.h"
#include "python.h"

namespace anyop {

// anyop.InternalError, anyop.DeviceError and anyop.DeclinedError; made once by the module.
extern PyObject* internal_error;
extern PyObject* device_error;
extern PyObject* declined_error;

// Raises the exception that stands for an AnyopStatus.
ErrorSet RaiseStatus(int32_t status, const char* message);

// None, or what the last call of anyop's C functions failed with as an error.
PyObject* NoneOrError(int32_t status);

// The operator of that name; nullptr with an error raised.
Operator* FindByName(PyObject* name);

// What is left of a thread's stack, asked before code of the caller's that may come back here.
// False with RecursionError set where the next calls would end the process. Python counts its own
// frames alone, whatever a call of an operator lays between them.
bool HasStack();

class ModulePart {
 public:
  // The last of the methods is empty.
  explicit ModulePart(PyMethodDef* methods) : methods_(methods) {}
  // Of a type that *type is to point to.
  ModulePart(const PyType_Spec& spec, PyTypeObject** type) : spec_(spec), type_(type) {}

  // All parts; once. False with an error set.
  static bool AddAll(PyObject* module);

 private:
  inline static const ModulePart* first_ = nullptr;

  PyMethodDef* const methods_ = nullptr;
  const PyType_Spec spec_ = {};
  PyTypeObject** const type_ = nullptr;
  const ModulePart* const next_ = std::exchange(first_, this);
};

// No C++ exception leaves a function that Python calls: Guarded<Function> stands in every table.
template <auto function>
struct Guard;

template <typename Result, typename... Args, Result (*function)(Args...)>
struct Guard<function> {
  static Result Call(Args... args) {
    try {
      return function(args...);
    } catch (const std::bad_alloc&) {
      PyErr_NoMemory();
    } catch (const std::exception& error) {
      PyErr_SetString(internal_error ? internal_error : PyExc_RuntimeError, error.what());
    }
    if constexpr (std::is_pointer_v<Result>) {
      return nullptr;
    } else {
      return -1;
    }
  }
};

template <auto function>
constexpr auto Guarded = Guard<function>::Call;

// A function of the module that takes a str alone: its text.
template <PyObject* (*function)(const char* text)>
PyObject* OfText(PyObject*, PyObject* str) {
  const char* text = PyUnicode_AsUTF8AndSize(str, nullptr);
  return text ? function(text) : nullptr;
}

// One that takes an operator's name alone.
template <PyObject* (*function)(Operator* op)>
PyObject* OfOperator(PyObject*, PyObject* name) {
  Operator* op = FindByName(name);
  return op ? function(op) : nullptr;
}

}  // namespace anyop
