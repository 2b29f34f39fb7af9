// SPDX-License-Identifier: Apache-2.0
// Python's limited API as every file of this binding sees it: references that let go of themselves,
// errors, texts, attributes.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <string>
#include <utility>

#ifdef Py_GIL_DISABLED
#error "anyop has no build for free-threaded Python yet: use a Python with the GIL"
#endif

namespace anyop {

// A base of what holds something for as long as it lives.
struct NoCopy {
  NoCopy() = default;
  NoCopy(const NoCopy&) = delete;
  NoCopy& operator=(const NoCopy&) = delete;
};

class Ref {
 public:
  explicit Ref(PyObject* object = nullptr) : object_(object) {}
  Ref(Ref&& other) noexcept : object_(other.Release()) {}
  Ref& operator=(Ref&& other) noexcept {
    Py_XDECREF(object_);
    object_ = other.Release();
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }

  PyObject* get() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }
  PyObject* Release() { return std::exchange(object_, nullptr); }

 private:
  PyObject* object_;
};

// What a function returns behind an error that is set: false, or no object.
struct ErrorSet {
  operator bool() const { return false; }
  template <typename T>
  operator T*() const {
    return nullptr;
  }
};

[[gnu::cold]] inline ErrorSet Raise(PyObject* kind, const std::string& text) {
  PyErr_SetString(kind, text.c_str());
  return {};
}

// The format is PyErr_Format's.
template <typename First, typename... Args>
[[gnu::cold]] ErrorSet Raise(PyObject* kind, const char* format, First first, Args... args) {
  PyErr_Format(kind, format, first, args...);
  return {};
}

// The text of a str; `otherwise`, without an error set, where there is none.
inline std::string TextOf(PyObject* str, const char* otherwise = "") {
  Py_ssize_t size = 0;
  const char* text = str ? PyUnicode_AsUTF8AndSize(str, &size) : nullptr;
  if (text) return std::string(text, static_cast<size_t>(size));
  PyErr_Clear();
  return otherwise;
}

inline PyObject* NewText(const std::string& text) {
  return PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
}

// An attribute, or an empty Ref without an error set.
inline Ref Attribute(PyObject* object, const char* name) {
  Ref value(object ? PyObject_GetAttrString(object, name) : nullptr);
  if (!value) PyErr_Clear();
  return value;
}

// An attribute where there is one. False with an error set that its own code raised.
inline bool Ask(PyObject* object, const char* name, Ref* value) {
  *value = Ref(PyObject_GetAttrString(object, name));
  if (*value) return true;
  if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return false;
  PyErr_Clear();
  return true;
}

// An attribute of a module, which is imported where it is not yet. Empty with an error set.
inline Ref Imported(const char* module, const char* name) {
  const Ref found(PyImport_ImportModule(module));
  return Ref(found ? PyObject_GetAttrString(found.get(), name) : nullptr);
}

// What such a function returns; the format is Py_BuildValue's.
template <typename... Args>
Ref CallImported(const char* module, const char* name, const char* format, Args... args) {
  const Ref found(PyImport_ImportModule(module));
  return Ref(found ? PyObject_CallMethod(found.get(), name, format, args...) : nullptr);
}

// A module that is loaded already (borrowed), or nullptr. Never imports.
inline PyObject* LoadedModule(const char* name) {
  PyObject* module = PyDict_GetItemString(PyImport_GetModuleDict(), name);
  return module && module != Py_None ? module : nullptr;
}

}  // namespace anyop
