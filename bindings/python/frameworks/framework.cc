// SPDX-License-Identifier: Apache-2.0
// Classifies types once, by the rows. Python's lock is held.
#include "frameworks/framework.h"

#include <list>
#include <set>

#include "frameworks/type_table.h"
#include "module.h"
#include "operator/operator.h"

namespace anyop {

const Listed* Listed::first = nullptr;
thread_local bool below_dispatcher = false;

namespace {

TypeTable known;

// The one source like that: a handful for each framework.
const Source* TheSource(const Source& like) {
  static auto* all = new std::list<Source>;
  for (const Source& s : *all) {
    if (s.framework == like.framework && s.api == like.api && s.is_plain == like.is_plain)
      return &s;
  }
  return &all->emplace_back(like);
}

const Source* Classify(PyObject* object, std::string* why) {
  PyTypeObject* type = Py_TYPE(object);
  for (const Listed* at = Listed::first; at; at = at->next) {
    if (const Found found = at->row->find(type, why); found.is_mine) return found.source;
  }
  for (auto find : {FindDlpack, FindBuffer}) {
    if (const Found found = find(object); found.is_mine) return found.source;
  }
  *why = "is " + ObjectText(type) + ", expected a tensor";
  return nullptr;
}

// call_below_dispatcher(function, args, kwargs): of a Python kernel.
PyObject* CallBelowDispatcher(PyObject*, PyObject* args) {
  PyObject *function, *positional, *named;
  if (!PyArg_ParseTuple(args, "OOO", &function, &positional, &named)) return nullptr;
  const bool before = below_dispatcher;
  below_dispatcher = true;
  PyObject* result = PyObject_Call(function, positional, named);
  below_dispatcher = before;
  return result;
}

PyMethodDef methods[] = {
    {"call_below_dispatcher", Guarded<CallBelowDispatcher>, METH_VARARGS, nullptr}, {}};
const ModulePart part(methods);

}  // namespace

const Framework* FrameworkOf(PyObject* name) {
  for (const Listed* at = Listed::first; at; at = at->next) {
    if (PyUnicode_CompareWithASCIIString(name, at->row->name) == 0) return at->row;
  }
  return nullptr;
}

std::string FrameworkNames() {
  std::set<std::string> names;
  EachFramework([&](const Framework& row) { names.insert(row.name); });
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

Found Remember(PyTypeObject* type, bool is_its, const Source& like) {
  const Source* source = TheSource(like);
  known.Add(type, source, is_its);
  return {true, source};
}

const Source* FindSource(PyObject* object, std::string* why) {
  const void* source = known.Find(Py_TYPE(object));
  return source ? static_cast<const Source*>(source) : Classify(object, why);
}

const Source* FindOwnSource(PyTypeObject* type) {
  return static_cast<const Source*>(known.FindStaying(type));
}

void* LoadGlue(const char* name) {
  const Ref address = CallImported("anyop.native.glues", "load", "s", name);
  void* glue = address && address.get() != Py_None ? PyLong_AsVoidPtr(address.get()) : nullptr;
  PyErr_Clear();
  return glue;
}

bool ClearOrdinary() {
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return false;
  PyErr_Clear();
  return true;
}

bool IsSubtype(PyTypeObject* type, const Ref& base) {
  return base && PyType_Check(base.get()) &&
         PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(base.get()));
}

std::string TypeText(PyTypeObject* type) {
  auto* object = reinterpret_cast<PyObject*>(type);
  const std::string prefix = TextOf(Attribute(object, "__module__").get());
  std::string full = prefix.empty() || prefix == "builtins" ? "" : prefix + ".";
  full += TextOf(Attribute(object, "__qualname__").get());
  EachFramework([&](const Framework& row) {
    if (row.renamed.from && full == row.renamed.from) full = row.renamed.to;
  });
  return full;
}

std::string ObjectText(PyTypeObject* type) {
  const std::string text = TypeText(type);
  return text == "NoneType" ? "None" : WithArticle(text);
}

}  // namespace anyop
