// SPDX-License-Identifier: Apache-2.0
// A plan is a tuple: steps and their numbers in turn, constants, names of operators, how many
// values there are, and where the way into the results begins.
#include "aten/aten_plan.h"

#include "aten/aten_loans.h"
#include "op.h"

namespace anyop {
namespace {

// False: it is none that a plan can have. A tuple of one holds the name of a dtype.
bool TakeConstant(PyObject* from, AnyopAtenValue* to) {
  if (!PyTuple_Check(from)) {
    Given given = {};
    if (!AtenLoans("plan").Look(from, &given)) return false;
    *to = given.value;
    return given.Is(kAnyopAtenNone) || given.IsReal() || given.Is(kAnyopAtenStr);
  }
  const char* name = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(from, 0), nullptr);
  *to = {};
  to->tag = kAnyopAtenInt;
  to->as.i = name ? aten::CodeOf(kAnyopAtenKindDtype, name) : -1;
  return to->as.i >= 0;
}

bool Take(PyObject* plan, aten::PlanText* text) {
  PyObject *steps, *constants, *calls;
  if (!PyArg_ParseTuple(plan, "O!O!O!ii", &PyTuple_Type, &steps, &PyTuple_Type, &constants,
                        &PyTuple_Type, &calls, &text->num_values, &text->into))
    return false;
  for (Py_ssize_t i = 0; i + 1 < PyTuple_Size(steps); i += 2)
    text->steps.push_back({static_cast<int32_t>(PyLong_AsLong(PyTuple_GetItem(steps, i))),
                           static_cast<int32_t>(PyLong_AsLong(PyTuple_GetItem(steps, i + 1)))});
  for (Py_ssize_t i = 0; i < PyTuple_Size(constants); ++i) {
    text->constants.emplace_back();
    if (!TakeConstant(PyTuple_GetItem(constants, i), &text->constants.back())) return false;
  }
  for (Py_ssize_t i = 0; i < PyTuple_Size(calls); ++i) {
    const char* name = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(calls, i), nullptr);
    if (!name) return false;
    text->calls.emplace_back(name);
  }
  return !PyErr_Occurred();
}

}  // namespace

aten::Plan* TakePlan(const Operator& op, const std::string& kernel, PyObject* computes) {
  const Ref plan = Attribute(computes, "plan");
  aten::PlanText text;
  text.name = kernel;
  const bool taken = plan && PyTuple_Check(plan.get()) && Take(plan.get(), &text);
  PyErr_Clear();
  return taken ? aten::MakePlan(op, text) : nullptr;
}

}  // namespace anyop
