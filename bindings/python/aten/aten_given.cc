// SPDX-License-Identifier: Apache-2.0
// Numbers by value, torch's tensors by their cell; others' memory is taken by aten_loans.cc.
#include "aten/aten_loans.h"
#include "frameworks/torch.h"
#include "frameworks/type_table.h"
#include "operators/view.h"

namespace anyop {
namespace {

// Types that hold no tensors, so that a dtype or a device is not asked for its memory each time.
TypeTable plain_types;

bool IsPlainType(PyTypeObject* type) {
  return type == &PyTuple_Type || type == &PyList_Type || plain_types.Find(type);
}

bool SetInt(PyObject* object, Given* given) {
  given->value = Integer(kAnyopAtenInt, PyLong_AsLongLong(object));
  if (given->value.as.i == -1 && PyErr_Occurred()) {
    PyErr_Clear();
    given->value.tag = kGivenOther;  // no operator takes it
  }
  return true;
}

bool SetFloat(PyObject* object, Given* given) {
  given->value = Tagged(kAnyopAtenFloat);
  given->value.as.f = PyFloat_AsDouble(object);
  return true;
}

bool SetText(PyObject* object, Given* given) {
  given->value = Tagged(kAnyopAtenStr);
  Py_ssize_t size;
  given->value.as.s = PyUnicode_AsUTF8AndSize(object, &size);
  given->value.more.count = size;
  return given->value.as.s != nullptr;
}

}  // namespace

bool AtenLoans::Refuse(PyObject* kind, const std::string& text) const {
  return Raise(kind, std::string(name_) + ": an argument " + text);
}

bool AtenLoans::Look(PyObject* object, Given* given) {
  given->object = object;
  PyTypeObject* of = Py_TYPE(object);
  if (__builtin_expect(source && type == of, 1)) return LookTensor(source, object, given);
  if (of == &PyFloat_Type) return SetFloat(object, given);
  if (of == &PyLong_Type) return SetInt(object, given);
  if (object == Py_None) return given->value = Tagged(kAnyopAtenNone), true;
  if (of == &PyBool_Type) return given->value = Integer(kAnyopAtenBool, object == Py_True), true;
  if (of == &PyUnicode_Type) return SetText(object, given);
  given->value.tag = kGivenOther;
  if (!IsPlainType(of)) return LookMore(object, given);
  ran_code |= (PyType_GetFlags(of) & Py_TPFLAGS_HEAPTYPE) != 0;  // when it is converted
  return true;
}

bool AtenLoans::LookMore(PyObject* object, Given* given) {
  if (const Source* own = FindOwnSource(Py_TYPE(object))) return LookTensor(own, object, given);
  if (IsAtenTensor(object)) {
    if (!home) home = &aten_home;
    given->value = Tagged(kAnyopAtenTorch);
    given->value.as.tensor = AtenTensorIn(object);
    has_held = true;
    return true;
  }
  if (const AnyopTensor* view = TensorOfView(object)) return LookView(*view, object, given);
  if (source) NoteCode();  // before the first tensor nothing was read that code could change
  if (LookScalar(object, given)) return !PyErr_Occurred();
  if (PyType_Check(object) || PyTuple_Check(object) || PyList_Check(object)) return true;
  if (PyBytes_Check(object)) return true;  // text to Python, though it is a buffer, too
  std::string text;
  if (const Source* from = FindSource(object, &text)) return LookTensor(from, object, given);
  if (PyErr_Occurred()) return false;
  if (text.find(", expected a tensor") == std::string::npos) return Refuse(PyExc_TypeError, text);
  plain_types.Add(Py_TYPE(object), &plain_types, false);
  return true;
}

// Subclasses of Python's numbers, and NumPy's scalars, are numbers.
bool AtenLoans::LookScalar(PyObject* object, Given* given) {
  if (PyFloat_Check(object)) return SetFloat(object, given);
  if (PyLong_Check(object)) return SetInt(object, given);
  if (PyUnicode_Check(object)) return SetText(object, given), true;
  if (PyComplex_Check(object)) {
    given->value = Tagged(kAnyopAtenComplex);
    given->value.as.f = PyComplex_RealAsDouble(object);
    given->value.more.imag = PyComplex_ImagAsDouble(object);
    return true;
  }
  if (!IsSubtype(Py_TYPE(object), Attribute(LoadedModule("numpy"), "generic"))) return false;
  Ref number(PyObject_CallMethod(object, "item", nullptr));
  if (number && Py_TYPE(number.get()) == Py_TYPE(object))  // a type of ml_dtypes'
    number = Ref(PyNumber_Float(object));
  if (!number) return true;
  const bool is_number =
      PyLong_Check(number.get()) || PyFloat_Check(number.get()) || PyComplex_Check(number.get());
  if (is_number) Look(number.get(), given);
  given->object = object;
  return true;
}

bool AtenLoans::Join(const Source* from, PyObject* object) {
  if (__builtin_expect(source != nullptr, 1))
    return __builtin_expect(Fits(*from), 1) || Refuse(PyExc_TypeError, MixedText(object));
  home = HomeOf(*from);
  first = object;
  type = Py_TYPE(object);
  source = from;
  if (home == &torch_framework)
    needs_torch = IsTorchInMode(torch_objects.torch);
  else if (home->read_mode)
    home->read_mode(&mode);
  return true;
}

bool AtenLoans::LookTensor(const Source* from, PyObject* object, Given* given) {
  if (from->framework == &torch_framework) return LookTorch(from, object, given);
  if (__builtin_expect(!from->is_plain, 0)) return LookAdapters(from, object, given);
  return Join(from, object) && Take(from, object, given);
}

bool AtenLoans::LookTorch(const Source* from, PyObject* object, Given* given) {
  if (!Join(from, object)) return false;
  if (__builtin_expect(!from->is_plain, 0)) needs_torch = true;
  given->value = Tagged(kAnyopAtenTorch);
  given->value.as.tensor = reinterpret_cast<AnyopAtenTensor*>(reinterpret_cast<char*>(object) +
                                                              torch_objects.tensor_offset);
  return true;
}

// What only its framework's adapter may read, or what has no value yet.
bool AtenLoans::LookAdapters(const Source* from, PyObject* object, Given* given) {
  const Framework& row = *from->framework;
  if (!row.is_traced)
    return Raise(PyExc_NotImplementedError, "%s: an argument is a %s, which has no memory yet: %s",
                 name_, TypeText(Py_TYPE(object)).c_str(), row.no_graphs);
  if (!Join(from, object)) return false;
  if (!row.is_traced(object)) return Take(from, object, given);
  has_tracers = true;
  given->value = Tagged(kGivenTraced);
  return true;
}

}  // namespace anyop
