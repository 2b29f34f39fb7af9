// SPDX-License-Identifier: Apache-2.0
// No C++ exception leaves a function that Python calls: Guarded<Function> stands in every table.
#pragma once

#include <exception>
#include <new>
#include <type_traits>

#include "operators/function.h"
#include "python.h"

namespace anyop {

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
