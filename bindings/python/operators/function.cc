// SPDX-License-Identifier: Apache-2.0
// One operator as a Python function. METH_FASTCALL entry: positional and keyword arguments to a
// frame, results back. The same code for every operator.
#include <cstring>
#include <map>

#include "anyop/anyop.h"
#include "anyop/held.h"
#include "call/call.h"
#include "call/held.h"
#include "module.h"
#include "objects.h"
#include "operators/operator_loans.h"
#include "operators/python_kernel.h"
#include "router/router.h"

namespace anyop {
namespace {

// What a function keeps of its operator. Never freed: operators are not.
struct Entry {
  const Operator* op;
  uint32_t num_params;
  uint32_t num_positional;
  PyObject* name;               // the operator's
  PyObject* names[kMaxParams];  // interned
  PyMethodDef method;
};

// What a function is bound to. It tells where pickle finds the function again.
struct Owner {
  PyObject_HEAD Entry* entry;
  Held* held;  // of what anyop.hold made; else nullptr
};
PyTypeObject* owner_type = nullptr;

// The namespace's functions, by name: getattr(anyop._operators.namespace("acme"), "rms_norm").
PyObject* ReduceOwner(PyObject* self, PyObject*) {
  const Ref find = Imported("anyop._operators", "namespace");
  if (!find) return nullptr;
  return Py_BuildValue("(O(s))", find.get(),
                       reinterpret_cast<Owner*>(self)->entry->op->table->name_space);
}

void DeleteOwner(PyObject* self) {
  AnyopDeleteHeld(reinterpret_cast<AnyopHeld*>(reinterpret_cast<Owner*>(self)->held));
  FreeObject(self);
}

PyMethodDef owner_methods[] = {{"__reduce__", Guarded<ReduceOwner>, METH_NOARGS, nullptr}, {}};
PyType_Slot owner_slots[] = {{Py_tp_methods, owner_methods},
                             {Py_tp_dealloc, reinterpret_cast<void*>(DeleteOwner)},
                             {0, nullptr}};
// Of an operator's function; nullptr for any other object.
Entry* EntryOf(PyObject* function) {
  PyObject* self = PyCFunction_Check(function) ? PyCFunction_GetSelf(function) : nullptr;
  return self && Py_TYPE(self) == owner_type ? reinterpret_cast<Owner*>(self)->entry : nullptr;
}

// out=(a, b) for an operator with several results.
bool SpreadOut(const Entry& e, PyObject* value, PyObject** arguments) {
  const Operator& op = *e.op;
  if (value == Py_None) return true;
  if (!PyTuple_Check(value) || PyTuple_Size(value) != op.num_outputs)
    return Raise(PyExc_TypeError, "%s: out must be a tuple of its %u results", op.name.c_str(),
                 op.num_outputs);
  for (uint32_t o = 0; o < op.num_outputs; ++o) {
    PyObject** slot = &arguments[op.num_inputs + o];
    if (*slot)
      return Raise(PyExc_TypeError, "%s: %s is given twice", op.name.c_str(),
                   op.params[op.num_inputs + o].name);
    *slot = PyTuple_GetItem(value, o);
  }
  return true;
}

bool Unknown(const Operator& op, PyObject* name) {
  std::vector<std::string> known;
  for (const Param& p : op.params) known.emplace_back(p.name);
  return Raise(PyExc_TypeError, "%s: there is no argument '%U' in %s%s", op.name.c_str(), name,
               op.table->schema, DidYouMean(TextOf(name), known).c_str());
}

bool TakeKeyword(const Entry& e, PyObject* name, PyObject* value, PyObject** arguments) {
  const uint32_t p = FindKeyword(e.names, e.num_params, name);
  if (p == e.num_params) {
    if (e.op->num_outputs > 1 && PyUnicode_CompareWithASCIIString(name, "out") == 0)
      return SpreadOut(e, value, arguments);
    return Unknown(*e.op, name);
  }
  if (arguments[p])
    return Raise(PyExc_TypeError, "%s: %U is given twice", e.op->name.c_str(), name);
  arguments[p] = value;
  return true;
}

// Borrowed references by parameter; nullptr where nothing was given.
[[gnu::always_inline]] inline bool SortArguments(const Entry& e, PyObject* const* args,
                                                 Py_ssize_t given, PyObject* keywords,
                                                 PyObject** arguments) {
  if (given > static_cast<Py_ssize_t>(e.num_positional))
    return Raise(PyExc_TypeError, "%s: got %zd positional arguments, expected at most %u: %s",
                 e.op->name.c_str(), given, e.num_positional, e.op->table->schema);
  Py_ssize_t i = 0;
  for (; i < given; ++i) arguments[i] = args[i];
  for (; i < static_cast<Py_ssize_t>(e.num_params); ++i) arguments[i] = nullptr;
  const Py_ssize_t count = keywords ? PyTuple_Size(keywords) : 0;
  for (Py_ssize_t k = 0; k < count; ++k) {
    if (!TakeKeyword(e, PyTuple_GetItem(keywords, k), args[given + k], arguments)) return false;
  }
  return true;
}

bool Missing(const Operator& op, const Param& p) {
  return Raise(PyExc_TypeError, "%s: %s is missing in %s", op.name.c_str(), p.name,
               op.table->schema);
}

[[gnu::always_inline]] inline bool FillResult(Frame* frame, OperatorLoans* loans, uint32_t i,
                                              const Param& p, PyObject* object) {
  if (!object || object == Py_None) return true;
  if (object == Py_False && p.Is(kAnyopOptional)) {  // dweight=False: not needed
    frame->unwanted |= uint64_t{1} << i;
    return true;
  }
  frame->given |= uint64_t{1} << i;
  return loans->Take(frame, p, object, &frame->tensors[i]);
}

[[gnu::always_inline]] inline bool FillArgument(Frame* frame, OperatorLoans* loans, uint32_t i,
                                                const Param& p, PyObject* object) {
  if (!object && !p.IsTensor()) return SetDefault(frame, p) || Missing(*frame->op, p);
  if (p.Is(kAnyopOutput)) return FillResult(frame, loans, i, p, object);
  // A Tensor?[] is optional in its elements, not itself.
  const bool optional =
      p.Is(kAnyopOptional) && !(p.Is(kAnyopOptionalElements) && !p.Is(kAnyopHasDefault));
  if (object == Py_None && optional) return true;
  if (!object) return p.Is(kAnyopHasDefault) || optional || Missing(*frame->op, p);
  frame->given |= uint64_t{1} << i;
  if (!p.IsTensor()) return loans->TakeScalar(frame, p, object);
  return p.IsList() ? loans->TakeList(frame, p, i)
                    : loans->Take(frame, p, object, &frame->tensors[i]);
}

[[gnu::always_inline]] inline PyObject* Results(const Entry& e, PyObject** arguments, Frame* frame,
                                                OperatorLoans* loans) {
  const Operator& op = *e.op;
  auto result = [&](Py_ssize_t output) {
    const auto o = static_cast<uint32_t>(output);
    if (PyObject* object = loans->ReleaseResult(o)) return object;
    const uint32_t p = op.num_inputs + o;
    return Py_NewRef(frame->given >> p & 1 ? arguments[p] : Py_None);
  };
  if (op.num_outputs == 1) return result(0);
  if (op.num_outputs == 0) Py_RETURN_NONE;
  return NewTuple(op.num_outputs, result);
}

// slow_call of an adapter's module, for calls that are not plain; a borrowed reference, nullptr
// with an error set.
PyObject* SlowCall(const char* adapter) {
  static auto* known = new std::map<const char*, PyObject*>;  // with Python's lock held
  if (const auto found = known->find(adapter); found != known->end()) return found->second;
  // Its packages first, the outer before the inner: where another thread imports one, the entries
  // are there at its end.
  for (const char* dot = adapter; (dot = std::strchr(dot, '.')); ++dot) {
    if (!Ref(PyImport_ImportModule(std::string(adapter, dot).c_str()))) return nullptr;
  }
  const Ref made = Imported(adapter, "slow_call");
  if (!made) return nullptr;
  const auto kept = known->emplace(adapter, made.get());  // or another thread's
  if (kept.second) Py_INCREF(made.get());
  return kept.first->second;
}

// The arguments as they came, to the framework's adapter.
PyObject* CallThroughAdapter(const Entry& e, const OperatorLoans& loans, PyObject* const* args,
                             Py_ssize_t given, PyObject* keywords) {
  PyObject* slow = HasStack() ? SlowCall(loans.source->framework->adapter) : nullptr;
  if (!slow) return nullptr;
  const Ref positional(NewTuple(given, [&](Py_ssize_t i) { return Py_NewRef(args[i]); }));
  const Ref named(PyDict_New());
  if (!positional || !named) return nullptr;
  const Py_ssize_t count = keywords ? PyTuple_Size(keywords) : 0;
  for (Py_ssize_t k = 0; k < count; ++k) {
    if (PyDict_SetItem(named.get(), PyTuple_GetItem(keywords, k), args[given + k])) return nullptr;
  }
  static PyObject* const gradient = PyUnicode_InternFromString("gradient");
  static PyObject* const dispatch = PyUnicode_InternFromString("dispatch");
  return PyObject_CallFunctionObjArgs(slow, loans.way() == Way::kGradient ? gradient : dispatch,
                                      e.name, positional.get(), named.get(), nullptr);
}

// Runs a call, or only explains it where explanation is set. Inline with its steps, as a compiler
// that sees its three callers would make a call of each.
[[gnu::always_inline]] inline PyObject* Run(Entry& e, PyObject* const* args, Py_ssize_t given,
                                            PyObject* keywords, std::string* explanation,
                                            Held* held) {
  PyObject* arguments[kMaxParams];
  if (!SortArguments(e, args, given, keywords, arguments)) return nullptr;
  Frame frame(e.op);
  const UsedHeld used(held, &frame);
  OperatorLoans loans(&frame, e.op->num_outputs, arguments);
  frame.explanation = explanation;
  const Param* params = e.op->params.data();
  uint32_t i = 0;
  while (i < e.num_params && FillArgument(&frame, &loans, i, params[i], arguments[i])) ++i;
  const bool filled = i == e.num_params && (!loans.ran_code || loans.TakeAgain(&frame));
  if (!filled && (loans.way() != Way::kDispatch || PyErr_Occurred())) return nullptr;
  if (__builtin_expect(loans.way() != Way::kPlain, 0) &&
      !(explanation && loans.way() == Way::kGradient)) {
    if (!explanation) return CallThroughAdapter(e, loans, args, given, keywords);
    return Raise(PyExc_TypeError, "%s: only plain tensors can be explained, with memory and values",
                 e.op->name.c_str());
  }
  if (!loans.SetStream(&frame)) return nullptr;
  const int32_t status = AnyopRunFrame(&frame);
  if (explanation && !explanation->empty()) Py_RETURN_NONE;
  if (__builtin_expect(status != kAnyopOk, 0)) {
    return RaiseStatus(status, frame.error);
  }
  loans.MarkWritten();
  if (!loans.WrapMade()) return nullptr;
  return Results(e, arguments, &frame, &loans);
}

// What anyop.adapter.constants puts in the place of numbers and of NumPy's arrays beside JAX's:
// a list by parameter; nullptr without an error where it has nothing to put.
Ref Replaced(const Entry& e, PyObject* const* arguments) {
  const Ref replace = Imported("anyop.adapter.constants", "replaced");
  if (!replace) return Ref();
  const Ref values(NewList(e.op->num_inputs, [&](Py_ssize_t i) {
    return Py_NewRef(arguments[i] ? arguments[i] : Py_None);
  }));
  if (!values) return Ref();
  Ref found(PyObject_CallFunctionObjArgs(replace.get(), e.name, values.get(), nullptr));
  return found.get() == Py_None ? Ref() : std::move(found);
}

// Behind a TypeError: once more, with tensors for constants.
PyObject* RunAgain(Entry& e, PyObject* const* args, Py_ssize_t given, PyObject* keywords,
                   std::string* explanation, Held* held) {
  PyObject* arguments[kMaxParams];
  Ref found;
  {
    TakenError error;
    const bool sorted = SortArguments(e, args, given, keywords, arguments);
    if (sorted) found = Replaced(e, arguments);
    if (!sorted || (!found && !PyErr_Occurred())) error.SetAgain();
  }
  if (!found) return nullptr;
  const Py_ssize_t count = given + (keywords ? PyTuple_Size(keywords) : 0);
  std::vector<PyObject*> values(args, args + count);
  for (Py_ssize_t at = 0; at < count; ++at) {
    PyObject* name = at < given ? nullptr : PyTuple_GetItem(keywords, at - given);
    const Py_ssize_t i = name ? FindKeyword(e.names, e.num_params, name) : at;
    if (i < e.op->num_inputs) values[at] = PyList_GetItem(found.get(), i);
  }
  return Run(e, values.data(), given, keywords, explanation, held);
}

// held: of the function, which owns it from here on, unless nullptr is returned.
PyObject* BindFunction(Entry* e, Held* held) {
  const Ref self(PyType_GenericAlloc(owner_type, 0));
  const Ref module(PyUnicode_FromString("anyop"));
  if (!self || !module) return nullptr;
  auto* owner = reinterpret_cast<Owner*>(self.get());
  owner->entry = e;
  PyObject* function = PyCFunction_NewEx(&e->method, self.get(), module.get());
  if (function) owner->held = held;
  return function;
}

PyObject* Call(PyObject* self, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  Entry& e = *reinterpret_cast<Owner*>(self)->entry;
  Held* held = reinterpret_cast<Owner*>(self)->held;
  PyObject* result = Run(e, args, given, keywords, nullptr, held);
  if (__builtin_expect(result != nullptr, 1) || !PyErr_ExceptionMatches(PyExc_TypeError))
    return result;
  return RunAgain(e, args, given, keywords, nullptr, held);
}

// explain(function, positional, keywords): what the call would run, as JSON; nothing runs.
PyObject* Explain(PyObject*, PyObject* args) {
  PyObject *function, *positional, *named;
  if (!PyArg_ParseTuple(args, "OO!O!", &function, &PyTuple_Type, &positional, &PyDict_Type, &named))
    return nullptr;
  Entry* e = EntryOf(function);
  if (!e) return Raise(PyExc_TypeError, "explain: expected a function of an operator");
  const Ref own(PyDict_Copy(named));  // holds the values, whatever happens to named meanwhile
  const Row row(positional, own.get());
  if (PyErr_Occurred()) return nullptr;
  EachFramework([](const Framework& row) {
    if (row.wake_thread) row.wake_thread();
  });
  std::string text;
  PyObject* const* values = row.values.data();
  Ref done(Run(*e, values, row.count, row.keywords.get(), &text, nullptr));
  if (!done && PyErr_ExceptionMatches(PyExc_TypeError))
    done = Ref(RunAgain(*e, values, row.count, row.keywords.get(), &text, nullptr));
  return done ? NewText(text) : nullptr;
}

// hold(function): the same with a handle of its own.
PyObject* NewHeldFunction(PyObject*, PyObject* function) {
  Entry* e = EntryOf(function);
  if (!e || !e->op->has_lists)
    return Raise(PyExc_TypeError, "hold: expected a function of an operator that takes lists");
  AnyopHeld* held;
  if (AnyopNewHeld(reinterpret_cast<const AnyopOperator*>(e->op), &held)) return PyErr_NoMemory();
  PyObject* made = BindFunction(e, reinterpret_cast<Held*>(held));
  if (!made) AnyopDeleteHeld(held);
  return made;
}

// A new built-in function that calls op; nullptr with an error raised.
PyObject* NewFunction(const Operator* op) {
  auto* e = new Entry{};
  e->op = op;
  e->name = PyUnicode_InternFromString(op->name.c_str());
  e->num_params = op->num_inputs + op->num_outputs;
  e->num_positional = e->num_params;
  for (uint32_t i = 0; i < e->num_params; ++i) {
    e->names[i] = PyUnicode_InternFromString(op->params[i].name);
    if (op->params[i].Is(kAnyopKeywordOnly) && i < e->num_positional) e->num_positional = i;
  }
  e->method = {op->table->name,
               reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(Guarded<Call>)),
               METH_FASTCALL | METH_KEYWORDS, op->table->doc};
  return BindFunction(e, nullptr);
}

// [(namespace, name, function)] of every operator, in the order of full names.
PyObject* Functions(PyObject*, PyObject*) {
  const int32_t count = AnyopListOperators(nullptr, 0);
  if (count < 0) return PyErr_NoMemory();
  std::vector<const AnyopOperator*> operators(static_cast<size_t>(count));
  AnyopListOperators(operators.data(), count);
  return NewList(count, [&](Py_ssize_t i) {
    const auto* op = reinterpret_cast<const Operator*>(operators[static_cast<size_t>(i)]);
    return Py_BuildValue("(ssN)", op->table->name_space, op->table->name, NewFunction(op));
  });
}

PyMethodDef methods[] = {{"functions", Guarded<Functions>, METH_NOARGS, nullptr},
                         {"explain", Guarded<Explain>, METH_VARARGS, nullptr},
                         {"hold", Guarded<NewHeldFunction>, METH_O, nullptr},
                         {}};
const ModulePart owner_part({"anyop._anyop.Operator", sizeof(Owner), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, owner_slots},
                            &owner_type),
    part(methods);

}  // namespace
}  // namespace anyop
