// SPDX-License-Identifier: Apache-2.0
// Numbers by value, torch's tensors by their cell; others' memory is lent by aten_lend.cc.
#include "aten/aten_given.h"

#include <cstring>

#include "aten/aten_tensor.h"
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
  SetNumber(given, GivenKind::kInt, kAnyopAtenInt);
  given->value.as.i = PyLong_AsLongLong(object);
  if (given->value.as.i == -1 && PyErr_Occurred()) {
    PyErr_Clear();
    given->kind = GivenKind::kOther;  // no operator takes it
  }
  return true;
}

bool SetFloat(PyObject* object, Given* given) {
  SetNumber(given, GivenKind::kFloat, kAnyopAtenFloat);
  given->value.as.f = PyFloat_AsDouble(object);
  return true;
}

bool SetText(PyObject* object, Given* given) {
  SetNumber(given, GivenKind::kStr, kAnyopAtenStr);
  Py_ssize_t size;
  given->value.as.s = PyUnicode_AsUTF8AndSize(object, &size);
  given->value.more.count = size;
  return given->value.as.s != nullptr;
}

}  // namespace

bool IsInstance(PyObject* object, PyObject* module, const char* name) {
  const Ref base = Attribute(module, name);
  return base && PyType_Check(base.get()) &&
         PyType_IsSubtype(Py_TYPE(object), reinterpret_cast<PyTypeObject*>(base.get()));
}

bool IsTorchInMode() {
  std::string why;
  TorchMode mode;
  const bool is_in =
      !InitTorchGuard(torch_objects.torch, &why) || ReadTorchMode(&mode) == Way::kDispatch;
  if (PyErr_Occurred()) PyErr_Clear();
  return is_in;
}

AtenCaller::~AtenCaller() {
  if (kept_.empty()) return;
  PyObject *kind, *value, *trace;  // a producer's deleter must not meet the call's error
  PyErr_Fetch(&kind, &value, &trace);
  for (PyObject* object : kept_) Py_DECREF(object);
  PyErr_Restore(kind, value, trace);
}

bool AtenCaller::Raise(PyObject* kind, const std::string& why) const {
  PyErr_SetString(kind, (std::string(name_) + ": an argument " + why).c_str());
  return false;
}

bool AtenCaller::Look(PyObject* object, Given* given) {
  given->object = object;
  PyTypeObject* of = Py_TYPE(object);
  if (__builtin_expect(source && type == of, 1)) return LookTensor(source, object, given);
  if (of == &PyFloat_Type) return SetFloat(object, given);
  if (of == &PyLong_Type) return SetInt(object, given);
  if (object == Py_None) return SetNumber(given, GivenKind::kNone, kAnyopAtenNone), true;
  if (of == &PyBool_Type) {
    SetNumber(given, GivenKind::kBool, kAnyopAtenBool);
    given->value.as.i = object == Py_True;
    return true;
  }
  if (of == &PyUnicode_Type) return SetText(object, given);
  given->kind = GivenKind::kOther;
  if (!IsPlainType(of)) return LookMore(object, given);
  ran_code |= (PyType_GetFlags(of) & Py_TPFLAGS_HEAPTYPE) != 0;  // when it is converted
  return true;
}

bool AtenCaller::LookMore(PyObject* object, Given* given) {
  if (const Source* own = FindOwnSource(Py_TYPE(object))) return LookTensor(own, object, given);
  if (IsAtenTensor(object)) {
    if (home == Home::kNone) home = Home::kAten;
    SetNumber(given, GivenKind::kTensor, kAnyopAtenTorch);
    given->value.as.tensor = AtenTensorIn(object);
    has_held = true;
    return true;
  }
  if (const AnyopTensor* view = TensorOfView(object)) return LookView(*view, object, given);
  if (source) {  // before the first tensor nothing was read that code could change
    ran_code = true;
    type = nullptr;
  }
  if (LookScalar(object, given)) return !PyErr_Occurred();
  if (PyType_Check(object) || PyTuple_Check(object) || PyList_Check(object)) return true;
  if (PyBytes_Check(object)) return true;  // text to Python, though it is a buffer, too
  std::string why;
  if (const Source* from = FindSource(object, &why)) return LookTensor(from, object, given);
  if (PyErr_Occurred()) return false;
  if (why.find(", expected a tensor") == std::string::npos) return Raise(PyExc_TypeError, why);
  plain_types.Add(Py_TYPE(object), &plain_types, false);
  return true;
}

// Subclasses of Python's numbers, and NumPy's scalars, are numbers.
bool AtenCaller::LookScalar(PyObject* object, Given* given) {
  if (PyFloat_Check(object)) return SetFloat(object, given);
  if (PyLong_Check(object)) return SetInt(object, given);
  if (PyUnicode_Check(object)) return SetText(object, given), true;
  if (PyComplex_Check(object)) {
    SetNumber(given, GivenKind::kComplex, kAnyopAtenComplex);
    given->value.as.f = PyComplex_RealAsDouble(object);
    given->value.more.imag = PyComplex_ImagAsDouble(object);
    return true;
  }
  if (!IsInstance(object, LoadedModule("numpy"), "generic")) return false;
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

bool AtenCaller::Join(Home other, const Source* from, PyObject* object) {
  if (__builtin_expect(home == Home::kNone || home == Home::kAten, 0)) {
    home = other;
    first = object;
    type = Py_TYPE(object);
    source = from;
    if (other == Home::kTorch) needs_torch = IsTorchInMode();
    if (other == Home::kPaddle) ReadPaddleMode(&paddle_records_);
    return true;
  }
  if (home == other && (home != Home::kExchange || from->api == source->api)) return true;
  return Raise(PyExc_TypeError, "is " + ObjectText(Py_TYPE(object)) + ", expected a " +
                                    TypeText(Py_TYPE(first)) + " as the tensors before it");
}

bool AtenCaller::LookTensor(const Source* from, PyObject* object, Given* given) {
  given->kind = GivenKind::kTensor;
  switch (from->origin) {
    case Origin::kTorch:
      return LookTorch(from, object, given);
    case Origin::kNumpy:
    case Origin::kDlpack:
    case Origin::kBuffer:
      return Join(Home::kNumpy, from, object) && Lend(from, object, given);
    case Origin::kPaddle:
      return Join(Home::kPaddle, from, object) && Lend(from, object, given);
    case Origin::kCupy:
      return Join(Home::kCupy, from, object) && Lend(from, object, given);
    case Origin::kExchange:
      return Join(Home::kExchange, from, object) && Lend(from, object, given);
    default:
      return LookForeign(from, object, given);
  }
}

bool AtenCaller::LookTorch(const Source* from, PyObject* object, Given* given) {
  if (!Join(Home::kTorch, from, object)) return false;
  SetNumber(given, GivenKind::kTensor, kAnyopAtenTorch);
  given->value.as.tensor = reinterpret_cast<AnyopAtenTensor*>(reinterpret_cast<char*>(object) +
                                                              torch_objects.tensor_offset);
  return true;
}

bool AtenCaller::LookForeign(const Source* from, PyObject* object, Given* given) {
  if (std::strcmp(from->adapter, "anyop.torch.dispatch") == 0) {
    if (!LookTorch(from, object, given)) return false;
    needs_torch = true;
    return true;
  }
  if (std::strcmp(from->adapter, "anyop.paddle.dispatch") == 0) {
    PyErr_Format(PyExc_NotImplementedError,
                 "%s: an argument is a %s, which has no memory yet: ATen's operators cannot be "
                 "nodes of Paddle's graphs; call them on eager tensors, outside of to_static",
                 name_, TypeText(Py_TYPE(object)).c_str());
    return false;
  }
  if (!Join(Home::kJax, from, object)) return false;
  if (!IsInstance(object, Attribute(LoadedModule("jax"), "core").get(), "Tracer"))
    return Lend(from, object, given);
  has_tracers = true;
  SetNumber(given, GivenKind::kTensor, kAnyopAtenNone);
  return true;
}

}  // namespace anyop
