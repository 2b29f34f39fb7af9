// SPDX-License-Identifier: Apache-2.0
// ATen's operators as Python callables. They have a type of their own: called by vectorcall, as
// built-in functions are, and with their overloads as attributes.
#include <cstring>
#include <map>
#include <string>

#include "anyop/anyop.h"
#include "aten/aten_call.h"
#include "module.h"
#include "objects.h"
#include "router/read/route_file.h"

namespace anyop {
namespace {

PyTypeObject* function_type = nullptr;

using VectorCall = PyObject* (*)(PyObject*, PyObject* const*, size_t, PyObject*);
// Not in the limited API before 3.12; the same since 3.8.
constexpr unsigned long kHasVectorCall = 1ul << 11;
constexpr size_t kArgumentsOffset = size_t{1} << (8 * sizeof(size_t) - 1);

struct Function {
  PyObject_HEAD VectorCall call;
  const AtenPacket* packet;
  PyObject* weak;  // references, which jax.jit keeps
};

const AtenPacket& PacketOf(PyObject* self) { return *reinterpret_cast<Function*>(self)->packet; }

AtenOverload NewOverload(const aten::Op* op) {
  AtenOverload made = {op, static_cast<uint32_t>(op->params.size()), 0, {}};
  for (uint32_t i = 0; i < made.num_params; ++i) {
    made.names.push_back(PyUnicode_InternFromString(op->params[i].name.c_str()));
    if (!op->params[i].has_default) made.num_required = i + 1;
  }
  return made;
}

// The overload of that name; "default" is the one without.
bool IsCalled(const aten::Op& op, const std::string& overload) {
  return op.overload == overload || (op.overload.empty() && overload == "default");
}

// Made once for a name and kept for ever. nullptr with an error raised.
const AtenPacket* FindPacket(PyObject* name) {
  const char* text = PyUnicode_Check(name) ? PyUnicode_AsUTF8AndSize(name, nullptr) : nullptr;
  if (!text) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "aten: a name is a str");
    return nullptr;
  }
  static auto* packets = new std::map<std::string, AtenPacket>;  // with Python's lock held
  std::string key = text;
  if (key.rfind("aten::", 0) == 0) key.erase(0, 6);
  if (const auto found = packets->find(key); found != packets->end()) return &found->second;
  const size_t dot = key.find('.');
  const aten::Name* all = aten::FindName(std::string_view(key).substr(0, dot));
  AtenPacket made = {key, {}};
  std::string known;
  std::vector<std::string> names;
  for (const aten::Op* op : all ? all->overloads : std::vector<const aten::Op*>()) {
    known += (known.empty() ? "" : ", ") + op->full_name;
    names.push_back(op->full_name);
    if (op->params.size() <= kMaxAtenArguments &&
        (dot == std::string::npos || IsCalled(*op, key.substr(dot + 1))))
      made.overloads.push_back(NewOverload(op));
  }
  if (!made.overloads.empty()) return &packets->emplace(key, std::move(made)).first->second;
  return Raise(
      PyExc_AttributeError,
      all ? ("no overload " + key + " of ATen, but " + known + DidYouMean(key, names)).c_str()
          : AnyopLastError());
}

PyObject* Call(PyObject* self, PyObject* const* args, size_t flags, PyObject* keywords) {
  return CallAten(PacketOf(self), args, static_cast<Py_ssize_t>(flags & ~kArgumentsOffset),
                  keywords);
}

PyObject* CallWithTuple(PyObject* self, PyObject* args, PyObject* named) {
  const Row row(args, named);
  if (PyErr_Occurred()) return nullptr;
  return CallAten(PacketOf(self), row.values.data(), row.count, row.keywords.get());
}

PyObject* NewFunction(const AtenPacket* packet) {
  auto* made = reinterpret_cast<Function*>(PyType_GenericAlloc(function_type, 0));
  if (!made) return nullptr;
  made->call = Guarded<Call>;
  made->packet = packet;
  return reinterpret_cast<PyObject*>(made);
}

// add.Tensor is the function of that overload.
PyObject* GetAttribute(PyObject* self, PyObject* name) {
  if (PyObject* found = PyObject_GenericGetAttr(self, name)) return found;
  if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return nullptr;
  PyErr_Clear();
  const Ref full(PyUnicode_FromFormat("%s.%U", PacketOf(self).name.c_str(), name));
  const AtenPacket* packet = full ? FindPacket(full.get()) : nullptr;
  return packet ? NewFunction(packet) : nullptr;
}

PyObject* GetName(PyObject* self, void*) {
  return PyUnicode_FromString(PacketOf(self).name.c_str());
}

PyObject* GetDoc(PyObject* self, void*) {
  std::string text;
  for (const AtenOverload& o : PacketOf(self).overloads)
    text += (text.empty() ? "" : "\n") + o.op->schema;
  return PyUnicode_FromString(text.c_str());
}

// Pickled by its name.
PyObject* Reduce(PyObject* self, PyObject*) {
  const Ref find = Imported("anyop.aten", "_function");
  return find ? Py_BuildValue("(O(s))", find.get(), PacketOf(self).name.c_str()) : nullptr;
}

PyObject* Text(PyObject* self) {
  return PyUnicode_FromFormat("<function anyop.aten.%s>", PacketOf(self).name.c_str());
}

void Delete(PyObject* self) {
  PyObject_ClearWeakRefs(self);
  FreeObject(self);
}

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Function, call), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Function, weak), READONLY, nullptr},
    {}};

PyGetSetDef attributes[] = {{"__name__", Guarded<GetName>, nullptr, nullptr, nullptr},
                            {"__qualname__", Guarded<GetName>, nullptr, nullptr, nullptr},
                            {"__doc__", Guarded<GetDoc>, nullptr, nullptr, nullptr},
                            {}};

PyMethodDef methods[] = {{"__reduce__", Guarded<Reduce>, METH_NOARGS, nullptr}, {}};

PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(Delete)},
                       {Py_tp_call, reinterpret_cast<void*>(Guarded<CallWithTuple>)},
                       {Py_tp_getattro, reinterpret_cast<void*>(Guarded<GetAttribute>)},
                       {Py_tp_repr, reinterpret_cast<void*>(Guarded<Text>)},
                       {Py_tp_members, members},
                       {Py_tp_getset, attributes},
                       {Py_tp_methods, methods},
                       {0, nullptr}};

// aten_open(table, glue or None, torch): once for a process.
PyObject* Open(PyObject*, PyObject* args) {
  const char *table, *glue;
  if (!PyArg_ParseTuple(args, "sz", &table, &glue)) return nullptr;
  const Ref torch = CallImported("anyop._frameworks", "real_torch", nullptr);
  if (!torch) return nullptr;
  if (torch.get() == Py_None) return Raise(PyExc_RuntimeError, "aten_open: import torch first");
  if (!InitTorchObjects(torch.get())) return nullptr;
  const int32_t status = AnyopAtenOpen(table, glue);
  torch_objects.has_glue = status == kAnyopOk && glue;
  return NoneOrError(status);
}

// aten_function(name): the callable of "add" or of "add.Tensor".
PyObject* Find(PyObject*, PyObject* name) {
  const AtenPacket* packet = FindPacket(name);
  return packet ? NewFunction(packet) : nullptr;
}

// aten_resolve(name, args, kwargs): the overload that the call takes; nothing runs.
PyObject* Resolve(PyObject*, PyObject* args) {
  PyObject *name, *positional, *named;
  if (!PyArg_ParseTuple(args, "OO!O!", &name, &PyTuple_Type, &positional, &PyDict_Type, &named))
    return nullptr;
  const AtenPacket* packet = FindPacket(name);
  if (!packet) return nullptr;
  const Row row(positional, named);
  if (PyErr_Occurred()) return nullptr;
  return ResolveAten(*packet, row.values.data(), row.count, row.keywords.get());
}

PyMethodDef functions[] = {{"aten_open", Guarded<Open>, METH_VARARGS, nullptr},
                           {"aten_function", Guarded<Find>, METH_O, nullptr},
                           {"aten_resolve", Guarded<Resolve>, METH_VARARGS, nullptr},
                           {}};
const ModulePart type_part({"anyop._anyop.AtenFunction", sizeof(Function), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | kHasVectorCall,
                            slots},
                           &function_type),
    part(functions);

}  // namespace
}  // namespace anyop
