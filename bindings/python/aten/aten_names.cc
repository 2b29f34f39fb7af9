// SPDX-License-Identifier: Apache-2.0
// Names are looked up in the table once for an object and remembered: frameworks' dtypes are
// objects that live as long as the process.
#include "aten/aten_names.h"

#include <cctype>
#include <cstring>
#include <string>

#include "frameworks/framework.h"
#include "op.h"

namespace anyop {

TorchObjects torch_objects;

namespace {

constexpr const char* kNamed[] = {"dtype", "layout", "memory_format", "device", "Generator"};
constexpr AnyopAtenKind kNamedKind[] = {kAnyopAtenKindDtype, kAnyopAtenKindLayout,
                                        kAnyopAtenKindMemoryFormat, kAnyopAtenKindDevice,
                                        kAnyopAtenKindGenerator};
constexpr int kNumNamed = 5;

// Written with Python's lock held.
struct Known {
  PyObject* object;  // kept, so that its address names it
  AnyopAtenKind kind;
  AnyopAtenValue value;
};
constexpr int kMaxKnown = 256;
Known known[kMaxKnown];
int num_known = 0;

bool IsTorchs(AnyopAtenKind kind, PyObject* object) {
  int i = 0;
  while (kNamedKind[i] != kind) ++i;
  return Py_TYPE(object) == torch_objects.named[i];
}

// "torch.float32", "FLOAT32" and "float32" alike; "bool_" is bool.
std::string Plain(PyObject* text) {
  std::string plain = TextOf(text);  // a NUL inside is no name's
  plain.erase(0, plain.rfind('.') + 1);
  if (!plain.empty() && plain.back() == '_') plain.pop_back();
  for (char& c : plain) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return plain;
}

bool Look(AnyopAtenKind kind, const std::string& text, AnyopAtenValue* value) {
  int64_t code;
  if (kind == kAnyopAtenKindDevice ? !aten::ParseDevice(text, &code)
                                   : (code = aten::CodeOf(kind, text)) < 0)
    return false;
  value->tag = kind == kAnyopAtenKindDevice ? kAnyopAtenDevice : kAnyopAtenInt;
  value->as.i = code;
  return true;
}

// A dtype of any framework. float is float64 to Python, though torch.float is not.
bool LookDtype(PyObject* object, AnyopAtenValue* value) {
  struct {
    void* type;
    const char* name;
  } const builtins[] = {{&PyFloat_Type, "float64"},
                        {&PyLong_Type, "int64"},
                        {&PyBool_Type, "bool"},
                        {&PyComplex_Type, "complex128"}};
  for (const auto& builtin : builtins) {
    if (object == builtin.type) return Look(kAnyopAtenKindDtype, builtin.name, value);
  }
  for (const char* attribute : {"name", "__name__"}) {
    if (Look(kAnyopAtenKindDtype, Plain(Attribute(object, attribute).get()), value)) return true;
  }
  return Look(kAnyopAtenKindDtype, Plain(Ref(PyObject_Str(object)).get()), value);
}

bool LookObject(AnyopAtenKind kind, PyObject* object, AnyopAtenValue* value) {
  if (kind == kAnyopAtenKindDtype) return LookDtype(object, value);
  const Ref text(PyObject_Str(object));
  const bool is_device = kind == kAnyopAtenKindDevice;
  return Look(kind, is_device ? TextOf(text.get()) : Plain(text.get()), value);
}

bool FromText(AnyopAtenKind kind, PyObject* text, bool strict, AnyopAtenValue* value) {
  if (kind == kAnyopAtenKindDevice) return Look(kind, TextOf(text), value);
  return !strict && Look(kind, Plain(text), value);
}

}  // namespace

bool InitTorchObjects(PyObject* torch) {
  if (torch_objects.torch) return true;
  TorchObjects found;
  for (int i = 0; i < kNumNamed; ++i) {
    PyObject* type = PyObject_GetAttrString(torch, kNamed[i]);
    if (!type) return false;
    found.named[i] = reinterpret_cast<PyTypeObject*>(type);
  }
  found.wrap = FindWrapTensor();
  found.tensor_offset = FindTensorOffset(torch);
  if (!found.wrap || !found.tensor_offset)
    return Raise(PyExc_NotImplementedError,
                 "aten: this torch keeps its tensors in another way than torch 1.9 to 2.13");
  found.torch = Py_NewRef(torch);
  torch_objects = found;
  return true;
}

bool ToNamed(AnyopAtenKind kind, PyObject* object, bool strict, AnyopAtenValue* value) {
  for (int i = 0; i < num_known; ++i) {
    if (known[i].object != object || known[i].kind != kind) continue;
    *value = known[i].value;
    return !strict || IsTorchs(kind, object);
  }
  if (PyUnicode_Check(object)) return FromText(kind, object, strict, value);
  if (strict && !IsTorchs(kind, object)) return false;
  *value = {};
  if (!LookObject(kind, object, value)) return false;
  const bool lives = IsTorchs(kind, object) ? kind != kAnyopAtenKindDevice : PyType_Check(object);
  if (lives && num_known < kMaxKnown) known[num_known++] = {Py_NewRef(object), kind, *value};
  return true;
}

bool ToGenerator(PyObject* object, bool strict, AnyopAtenValue* value) {
  *value = {};
  if (IsTorchs(kAnyopAtenKindGenerator, object)) {
    const Ref address = Attribute(object, "_cdata");
    value->as.generator = address ? PyLong_AsVoidPtr(address.get()) : nullptr;
    value->tag = kAnyopAtenGenerator;
    if (!value->as.generator) PyErr_Clear();
    return value->as.generator;
  }
  if (strict || !PyLong_Check(object) || PyBool_Check(object)) return false;
  value->tag = kAnyopAtenSeed;
  value->as.i = PyLong_AsLongLong(object);
  if (value->as.i != -1 || !PyErr_Occurred()) return true;
  PyErr_Clear();
  return false;
}

PyObject* FromNamed(AnyopAtenKind kind, const AnyopAtenValue& value, bool as_torch) {
  if (kind == kAnyopAtenKindDevice) {
    const auto type = static_cast<int32_t>(value.as.i >> 32);
    const auto index = static_cast<int32_t>(value.as.i);
    const char* name = aten::NameOf(kind, type);
    const Ref text(index < 0 ? PyUnicode_FromString(name ? name : "unknown")
                             : PyUnicode_FromFormat("%s:%d", name ? name : "unknown", index));
    if (!as_torch || !text) return Py_XNewRef(text.get());
    return PyObject_CallMethod(torch_objects.torch, "device", "O", text.get());
  }
  const char* name = aten::NameOf(kind, static_cast<int32_t>(value.as.i));
  if (!name) return PyLong_FromLongLong(value.as.i);
  return as_torch ? PyObject_GetAttrString(torch_objects.torch, name) : PyUnicode_FromString(name);
}

bool IsSymbolic(PyObject* object) {
  const std::string type = TypeText(Py_TYPE(object));
  return type == "torch.SymInt" || type == "torch.SymFloat" || type == "torch.SymBool";
}

bool IsTorchObject(PyObject* object) {
  for (PyTypeObject* named : torch_objects.named) {
    if (Py_TYPE(object) == named) return false;
  }
  return !PyTuple_Check(object) && TypeText(Py_TYPE(object)).rfind("torch.", 0) == 0;
}

}  // namespace anyop
