// SPDX-License-Identifier: Apache-2.0
// Functions of _anyop for the rules of ATen's overloads: those of anyop/aten_route.h.
#include <string>
#include <vector>

#include "anyop/aten_route.h"
#include "gil.h"
#include "module.h"
#include "router/router.h"

namespace anyop {
namespace {

// False with an error set.
bool TakeTexts(PyObject* given, std::vector<std::string>* texts) {
  if (!PyList_Check(given)) return Raise(PyExc_TypeError, "expected a list, got %R", given);
  for (Py_ssize_t i = 0; i < PyList_Size(given); ++i) {
    const char* text = PyUnicode_AsUTF8AndSize(PyList_GetItem(given, i), nullptr);
    if (!text) return false;
    texts->emplace_back(text);
  }
  return true;
}

// set_aten_overloads(["add.Tensor", ...]); an empty list: names are no longer checked
PyObject* SetOverloads(PyObject*, PyObject* given) {
  std::vector<std::string> texts;
  if (!TakeTexts(given, &texts)) return nullptr;
  std::vector<const char*> names;
  for (const std::string& text : texts) names.push_back(text.c_str());
  return NoneOrError(Unlocked(
      [&] { return AnyopSetAtenOverloads(names.data(), static_cast<int64_t>(names.size())); }));
}

PyObject* AddBackend(const char* name) {
  return NoneOrError(Unlocked([&] { return AnyopAddAtenBackend(name); }));
}

// aten_route(overload, device): (backends, disabled, reason); empty and "default" where nobody says
// anything
PyObject* GetRoute(PyObject*, PyObject* args) {
  const char *overload, *device;
  if (!PyArg_ParseTuple(args, "ss", &overload, &device)) return nullptr;
  AnyopAtenRouting routing = {};
  routing.size = sizeof routing;
  const int32_t status = Unlocked([&] { return AnyopAtenRoute(overload, device, &routing); });
  if (status != kAnyopOk) return NoneOrError(status);
  return Py_BuildValue("(sss)", routing.backends, routing.disabled, routing.reason);
}

// rules_about(pattern, ["add.Tensor", ...]): JSON
PyObject* RulesAbout(PyObject*, PyObject* args) {
  const char* pattern;
  PyObject* given;
  std::vector<std::string> overloads;
  if (!PyArg_ParseTuple(args, "sO", &pattern, &given) || !TakeTexts(given, &overloads))
    return nullptr;
  return NewText(Unlocked([&] { return RulesAboutJson(pattern, overloads); }));
}

PyMethodDef methods[] = {
    {"set_aten_overloads", Guarded<SetOverloads>, METH_O, nullptr},
    {"add_aten_backend", Guarded<OfText<AddBackend>>, METH_O, nullptr},
    {"aten_route", Guarded<GetRoute>, METH_VARARGS, nullptr},
    {"rules_about", Guarded<RulesAbout>, METH_VARARGS, nullptr},
    {},
};
const ModulePart part(methods);

}  // namespace
}  // namespace anyop
