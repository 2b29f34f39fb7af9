// SPDX-License-Identifier: Apache-2.0
// Python's numbers, strings and dtypes into the fields of a frame. Strict about types: a float is
// no int, a str no number; Python's and NumPy's own scalars are taken.
#include <cstring>
#include <string>
#include <vector>

#include "module.h"
#include "objects.h"
#include "operators/operator_loans.h"
#include "router/router.h"
#include "tensors/dtype.h"

namespace anyop {
namespace {

const char* const kKindName[] = {"", "Tensor", "int", "float", "bool", "str", "dtype"};

bool WrongType(const Operator& op, const Param& p, PyObject* object) {
  return Refuse(op, p, PyExc_TypeError,
                "is " + ObjectText(Py_TYPE(object)) + ", expected " +
                    (p.IsList() ? "a list of " : "") + kKindName[p.kind]);
}

// Of a framework: a tensor, or what stands for one in its graphs.
bool IsTensor(PyObject* object) {
  if (Attribute(object, "__dlpack__")) return true;
  std::string why;
  const Source* source = FindSource(object, &why);
  PyErr_Clear();
  return source && source->framework->adapter;
}

// Replaces the error of a conversion by ours. One that the object's own Python code raised has that
// code in its traceback, and is kept; that of a framework's array is not.
bool ConversionFailed(const Operator& op, const Param& p, PyObject* object) {
  TakenError error;
  bool ours = false;
  for (PyObject* kind :
       {PyExc_TypeError, PyExc_ValueError, PyExc_OverflowError, PyExc_RuntimeError})
    ours = ours || error.Is(kind);
  if (!ours || error.Is(PyExc_RecursionError) || (error.has_trace() && !IsTensor(object)))
    return error.SetAgain(), false;
  if (!error.Is(PyExc_OverflowError)) return WrongType(op, p, object);
  return Refuse(
      op, p, PyExc_ValueError,
      std::string("is out of the range of ") + (p.kind == kAnyopInt ? "int64" : "float64"));
}

// Of an operator with tensors for which numbers may stand: a tensor given for a number would be
// read by waiting for its device. What the object's own code raises is kept.
bool WouldWait(const Operator& op, const Param& p, PyObject* object) {
  if (!op.has_numbers) return false;
  Ref found;
  if (!Ask(object, "__dlpack__", &found)) return true;
  if (!found && !IsTensor(object)) return false;
  std::string names;
  for (const Param& other : op.params)
    if (other.Is(kAnyopNumber)) names += (names.empty() ? "" : ", ") + std::string(other.name);
  Refuse(op, p, PyExc_TypeError,
         "is " + ObjectText(Py_TYPE(object)) + ", expected " + kKindName[p.kind] +
             ": reading it would wait for its device; " + names + " take tensors");
  return true;
}

bool ToInt(const Operator& op, const Param& p, PyObject* object, int64_t* value) {
  if (Py_TYPE(object) != &PyLong_Type && PyFloat_Check(object)) return WrongType(op, p, object);
  *value = PyLong_AsLongLong(object);
  return !(*value == -1 && PyErr_Occurred()) || ConversionFailed(op, p, object);
}

bool ToFloat(const Operator& op, const Param& p, PyObject* object, double* value) {
  // NumPy's complex numbers would lose a part, with a warning.
  if (!PyFloat_Check(object) && !PyLong_Check(object) &&
      TypeText(Py_TYPE(object)).rfind("numpy.c", 0) == 0)
    return WrongType(op, p, object);
  *value = PyFloat_AsDouble(object);
  return !(*value == -1 && PyErr_Occurred()) || ConversionFailed(op, p, object);
}

bool ToBool(const Operator& op, const Param& p, PyObject* object, int64_t* value) {
  if (object != Py_True && object != Py_False) {
    const std::string type = TypeText(Py_TYPE(object));
    if (type != "numpy.bool" && type != "numpy.bool_") return WrongType(op, p, object);
  }
  *value = object == Py_True || (object != Py_False && PyObject_IsTrue(object) == 1);
  return true;
}

bool ToString(const Operator& op, const Param& p, PyObject* object, AnyopString* value) {
  if (!PyUnicode_Check(object)) return WrongType(op, p, object);
  Py_ssize_t size;
  const char* text = PyUnicode_AsUTF8AndSize(object, &size);
  if (!text) {
    PyErr_Clear();
    return Refuse(op, p, PyExc_ValueError, "is no valid Unicode text");
  }
  if (std::strlen(text) != static_cast<size_t>(size))
    return Refuse(op, p, PyExc_ValueError, "holds a NUL character");
  *value = {text, size};
  return true;
}

// Something where an object is a tensor. Few types are asked for: the last that was none is kept.
bool AskTensor(PyObject* object, Ref* found) {
  static PyTypeObject* none = nullptr;  // under Python's lock
  if (Py_TYPE(object) == none) return true;
  if (!Ask(object, "__dlpack__", found)) return false;
  if (*found) return true;
  Py_XDECREF(reinterpret_cast<PyObject*>(none));
  none = Py_TYPE(object);
  Py_INCREF(reinterpret_cast<PyObject*>(none));
  return true;
}

// "float32", numpy.float32, numpy.dtype("float32"), torch.float32 and the like.
bool ToDtype(const Operator& op, const Param& p, PyObject* object, int64_t* value) {
  Ref name, tensor;   // a tensor's text would read its memory, which may be gone
  bool shown = true;  // in the message: an arbitrary object's text may be anything
  if (!PyUnicode_Check(object)) {
    for (const char* attribute : {"name", "__name__"}) {
      if (name) break;
      Ref found;
      if (!Ask(object, attribute, &found)) return ConversionFailed(op, p, object);
      if (found && PyUnicode_Check(found.get())) name = std::move(found);
    }
    Ref native;
    if (name && !Ask(object, "isnative", &native)) return ConversionFailed(op, p, object);
    if (native && native.get() == Py_False)
      return Refuse(op, p, PyExc_TypeError,
                    "has its bytes swapped, expected the machine's order: "
                    "the dtype's .newbyteorder(\"=\")");
    shown = static_cast<bool>(name);
    if (!name && !AskTensor(object, &tensor)) return ConversionFailed(op, p, object);
    if (!name && !tensor) name = Ref(PyObject_Str(object));  // "torch.float32"
    if (!name && !tensor) return ConversionFailed(op, p, object);
  }
  const char* text =
      tensor ? nullptr : PyUnicode_AsUTF8AndSize(name ? name.get() : object, nullptr);
  if (!text) PyErr_Clear();
  *value = text ? DtypeFromName(text) : kAnyopNoDtype;
  if (*value != kAnyopNoDtype) return true;
  std::vector<std::string> known;
  for (int i = 0; i < kAnyopNumDtypes; ++i) known.emplace_back(DtypeName(i));
  std::string found = ObjectText(Py_TYPE(object));
  if (shown) found = text ? text : "no text";
  return Refuse(op, p, PyExc_TypeError,
                "is " + found +
                    ", expected a dtype such as \"float32\", numpy.float32 or torch.float32" +
                    DidYouMean(text ? text : "", known));
}

// Whether its conversion runs no code of the caller's.
bool IsExact(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  return type == &PyFloat_Type || type == &PyLong_Type || type == &PyBool_Type ||
         type == &PyUnicode_Type;
}

// Code of the caller's runs now, which may call operators. False with an error raised.
bool MayRunCode(Loans* loans) {
  loans->NoteCode();
  return HasStack();
}

// One element, written to 8 bytes (16 for a string) at to.
bool ToElement(const Operator& op, const Param& p, PyObject* object, void* to) {
  switch (p.kind) {
    case kAnyopInt:
      return ToInt(op, p, object, static_cast<int64_t*>(to));
    case kAnyopFloat:
      return ToFloat(op, p, object, static_cast<double*>(to));
    case kAnyopBoolean:
      return ToBool(op, p, object, static_cast<int64_t*>(to));
    case kAnyopStr:
      return ToString(op, p, object, static_cast<AnyopString*>(to));
    default:
      return ToDtype(op, p, object, static_cast<int64_t*>(to));
  }
}

// The element may leave its list before the call ends.
void CopyText(Frame* frame, AnyopString* text) {
  char* copy = frame->arena.Take<char>(text->count + 1);
  std::memcpy(copy, text->data, static_cast<size_t>(text->count) + 1);
  text->data = copy;
}

bool TakeValues(Loans* loans, Frame* frame, const Param& p, PyObject* object) {
  const Operator& op = *frame->op;
  const bool tuple = PyTuple_Check(object), list = PyList_Check(object);
  const bool repeated = !tuple && !list && p.fixed_count >= 0;  // int[2] stride=1
  if (!tuple && !list && !repeated) return WrongType(op, p, object);
  const Py_ssize_t given = tuple ? PyTuple_Size(object) : list ? PyList_Size(object) : 1;
  const Py_ssize_t count = repeated ? p.fixed_count : given;
  if (p.fixed_count >= 0 && count != p.fixed_count) {
    return Refuse(
        op, p, PyExc_ValueError,
        "has " + std::to_string(count) + " values, expected " + std::to_string(p.fixed_count));
  }
  const int64_t item = p.kind == kAnyopStr ? 16 : 8;
  char* values = frame->arena.Take<char>(count * item + 1);
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* element = repeated ? object
                        : tuple  ? PyTuple_GetItem(object, i)
                                 : PyList_GetItem(object, i);
    if (!element) return false;  // the list shrank under us
    const Ref held(Py_NewRef(element));
    if (!IsExact(element) && (!MayRunCode(loans) || WouldWait(op, p, element))) return false;
    if (!ToElement(op, p, element, values + i * item)) return false;
    if (p.kind == kAnyopStr) CopyText(frame, reinterpret_cast<AnyopString*>(values + i * item));
  }
  frame->Field<AnyopIntList>(p) = {reinterpret_cast<const int64_t*>(values), count};
  return true;
}

}  // namespace

bool Refuse(const Operator& op, const Param& p, PyObject* kind, const std::string& why) {
  return Raise(kind, "%s: %s %s", op.name.c_str(), p.name, why.c_str());
}

bool OperatorLoans::TakeScalar(Frame* frame, const Param& p, PyObject* object) {
  if (p.IsList()) return TakeValues(this, frame, p, object);
  const Operator& op = *frame->op;
  if (__builtin_expect(!IsExact(object), 0) && (!MayRunCode(this) || WouldWait(op, p, object)))
    return false;
  if (p.kind == kAnyopStr) return ToString(op, p, object, &frame->Field<AnyopString>(p));
  if (p.kind == kAnyopFloat) {
    double value;
    if (!ToFloat(op, p, object, &value)) return false;
    SetFloat(frame, p, value);
    return true;
  }
  int64_t value;
  if (!ToElement(op, p, object, &value)) return false;
  SetInt(frame, p, value);
  return true;
}

}  // namespace anyop
