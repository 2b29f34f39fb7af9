// SPDX-License-Identifier: Apache-2.0
// One call of an operator of ATen's: its arguments are looked at, matched to an overload, given to
// torch without Python's lock, and its results returned. Where the values are not there, the call
// is handed on to torch.ops or to the framework that traces.
#include "aten/aten_call.h"

#include "frameworks/torch.h"
#include "gil.h"
#include "module.h"
#include "objects.h"

namespace anyop {
namespace {

// Whether the keyword is the call's own.
bool IsLike(PyObject* name) {
  static PyObject* const like = PyUnicode_InternFromString("like");
  return name == like || PyUnicode_Compare(name, like) == 0;
}

// Looks at the arguments.
bool Gather(const AtenPacket& packet, PyObject* const* args, Py_ssize_t num_positional,
            PyObject* keywords, AtenLoans* loans, AtenGiven* given) {
  const Py_ssize_t num_keywords = keywords ? PyTuple_Size(keywords) : 0;
  if (num_positional + num_keywords > kMaxAtenArguments)
    return Raise(PyExc_TypeError, "%s: got %zd arguments, and no operator of ATen has more than %d",
                 packet.name.c_str(), num_positional + num_keywords, kMaxAtenArguments);
  given->num_positional = static_cast<uint32_t>(num_positional);
  for (Py_ssize_t i = 0; i < num_positional; ++i) {
    if (!loans->Look(args[i], &given->values[i])) return false;
  }
  given->count = given->num_positional;
  for (Py_ssize_t k = 0; k < num_keywords; ++k) {
    PyObject* name = PyTuple_GetItem(keywords, k);
    PyObject* value = args[num_positional + k];
    if (__builtin_expect(IsLike(name), 0)) {
      given->like = value;
      continue;
    }
    if (!loans->Look(value, &given->values[given->count])) return false;
    given->names[given->count++] = name;
  }
  return true;
}

// By what records the call in the framework's own program.
PyObject* CallTraced(const AtenMatch& match, const AtenGiven& given, const Framework& home) {
  const Ref call = Imported(home.traced, "call"), named(PyDict_New());
  const Ref positional(NewTuple(given.num_positional,
                                [&](Py_ssize_t i) { return Py_NewRef(given.values[i].object); }));
  if (!call || !named || !positional) return nullptr;
  for (uint32_t k = given.num_positional; k < given.count; ++k) {
    if (PyDict_SetItem(named.get(), given.names[k], given.values[k].object)) return nullptr;
  }
  return PyObject_CallFunction(call.get(), "sOO", match.overload->op->full_name.c_str(),
                               positional.get(), named.get());
}

// The arguments as torch.ops takes them: names of dtypes and the like as torch's objects.
PyObject* TorchArgument(const AtenMatch& match, uint32_t i) {
  const aten::Param& p = match.overload->op->params[i];
  const AnyopAtenValue& value = match.values[i];
  const bool named = value.tag == kAnyopAtenInt && p.type.kind >= kAnyopAtenKindDtype &&
                     p.type.kind <= kAnyopAtenKindMemoryFormat;
  if (named || value.tag == kAnyopAtenDevice)
    return FromNamed(static_cast<AnyopAtenKind>(p.type.kind), value, true);
  if (value.tag == kAnyopAtenSeed) {
    const Ref made(PyObject_CallMethod(torch_objects.torch, "Generator", nullptr));
    return made ? PyObject_CallMethod(made.get(), "manual_seed", "L", value.as.i) : nullptr;
  }
  PyObject* object = match.objects[i];
  if (p.IsList() && value.tag == kAnyopAtenList && PyLong_Check(object))
    return NewList(value.more.count, [&](Py_ssize_t) { return Py_NewRef(object); });
  return Py_NewRef(object);
}

// torch.ops.aten.<name>.<overload>: with modes, subclasses and symbolic sizes.
PyObject* CallTorch(const AtenMatch& match) {
  const aten::Op& op = *match.overload->op;
  const Ref ops = Attribute(torch_objects.torch, "ops"), space = Attribute(ops.get(), "aten");
  const Ref packet(PyObject_GetAttrString(space.get(), op.name.c_str() + 6));  // behind "aten::"
  const Ref function(packet
                         ? PyObject_GetAttrString(
                               packet.get(), op.overload.empty() ? "default" : op.overload.c_str())
                         : nullptr);
  const Ref list(PyList_New(0)), named(PyDict_New());
  if (!function || !list || !named) return nullptr;
  for (uint32_t i = 0; i < match.count; ++i) {
    if (!match.objects[i]) continue;
    const Ref value(TorchArgument(match, i));
    if (!value) return nullptr;
    const bool leads =
        i < op.num_positional && PyList_Size(list.get()) == static_cast<Py_ssize_t>(i);
    if (leads ? PyList_Append(list.get(), value.get())
              : PyDict_SetItem(named.get(), match.overload->names[i], value.get()))
      return nullptr;
  }
  const Ref args(PyList_AsTuple(list.get()));
  return args ? PyObject_Call(function.get(), args.get(), named.get()) : nullptr;
}

bool IsViewed(const aten::Op& op, uint32_t param) {
  for (const aten::Param& result : op.results) {
    if (result.type.alias == static_cast<int16_t>(param)) return true;
  }
  return false;
}

bool IsWritten(const aten::Op& op, uint32_t param) {
  if (op.params[param].Is(kAnyopAtenWrites)) return true;
  for (const aten::HiddenWrite& write : op.hidden_writes) {
    if (write.param == param) return true;
  }
  return false;
}

// visit(i, loan) for the memory of each argument i that is another framework's, until it is false.
template <typename Visit>
bool EachLoan(const AtenMatch& match, const Visit& visit) {
  for (uint32_t i = 0; i < match.count; ++i) {
    const AnyopAtenValue& value = match.values[i];
    const bool is_list = value.tag == kAnyopAtenList;
    for (int64_t k = 0; k < (is_list ? value.more.count : 1); ++k) {
      AtenLoan* loan = LoanOf(is_list ? value.as.list[k] : value);
      if (loan && !visit(i, loan)) return false;
    }
  }
  return true;
}

// Memory with negative strides is copied where nobody can tell.
bool StraightenAll(const AtenMatch& match, AtenLoans* loans) {
  const aten::Op& op = *match.overload->op;
  return EachLoan(match, [&](uint32_t i, AtenLoan* loan) -> bool {
    if (!loan->is_turned) return true;
    const bool writes = IsWritten(op, i);
    if (!writes && !IsViewed(op, i)) return loans->Straighten(loan);
    return Raise(PyExc_ValueError,
                 "%s: %s has negative strides, which torch has not; a copy would %s",
                 op.full_name.c_str(), op.params[i].name.c_str(),
                 writes ? "be written in its place" : "not share its memory with the result");
  });
}

void MarkAllWritten(const AtenMatch& match, const Framework& home) {
  EachLoan(match, [&](uint32_t i, const AtenLoan* loan) {
    if (IsWritten(*match.overload->op, i)) home.mark_written(loan->object);
    return true;
  });
}

PyObject* Run(const AtenMatch& match, AtenLoans* loans, AtenReceiver receiver) {
  const aten::Op& op = *match.overload->op;
  if (!loans->Settle()) return nullptr;
  if (__builtin_expect(loans->has_turned, 0) && !StraightenAll(match, loans)) return nullptr;
  AnyopAtenOptions options = {sizeof options, 0, nullptr, 0, 0};
  const bool is_torchs = !loans->home || loans->home == &torch_framework;
  if (receiver.home == &torch_framework && is_torchs) options.flags = kAnyopAtenAsTorch;
  const bool is_kept = torch_objects.has_glue || options.flags & kAnyopAtenAsTorch;
  // torch's C shim turns gradients off, but what else a thread's state does is out of its reach.
  if (__builtin_expect(!is_kept, 0) && IsTorchInMode(torch_objects.torch))
    return Raise(
        PyExc_RuntimeError,
        "%s: without the ATen glue a call cannot be kept from this thread's autocast, modes, "
        "transforms and profilers: leave them first; `anyop doctor` says how to get the glue",
        op.full_name.c_str());
  if (!loans->SetStream(&options)) return nullptr;
  TakeRetained();
  AnyopAtenValue results[kMaxAtenArguments];
  int32_t status;
  {
    const WithoutGil without;
    status = AnyopAtenCall(reinterpret_cast<const AnyopAtenOp*>(&op), match.values,
                           static_cast<int32_t>(match.count), results, &options);
  }
  receiver.lends = TakeRetained() || loans->has_held;
  if (!is_torchs && loans->home->mark_written) MarkAllWritten(match, *loans->home);
  if (__builtin_expect(!loans->Finish(), 0)) {
    if (status == kAnyopOk) AnyopAtenDrop(results, static_cast<int32_t>(op.results.size()));
    return nullptr;
  }
  if (__builtin_expect(status == kAnyopOk, 1)) return AtenResults(match, receiver, results);
  return RaiseStatus(status, AnyopLastError());
}

}  // namespace

PyObject* CallAten(const AtenPacket& packet, PyObject* const* args, Py_ssize_t num_positional,
                   PyObject* keywords) {
  ReleaseLate();
  if (!HasStack()) return nullptr;
  AtenLoans loans(packet.name.c_str());
  AtenGiven given;
  AtenMatch match;
  AtenReceiver receiver;
  if (!Gather(packet, args, num_positional, keywords, &loans, &given) ||
      !Match(packet, &loans, given, &match))
    return nullptr;
  if (__builtin_expect(loans.has_tracers, 0)) return CallTraced(match, given, *loans.home);
  if (__builtin_expect(loans.wants_gradient, 0))
    return Raise(PyExc_NotImplementedError, "%s: %s", match.overload->op->full_name.c_str(),
                 loans.home->no_gradients);
  if (!FindReceiver(&loans, given.like, &receiver)) return nullptr;
  if (!loans.home && receiver.home == &torch_framework)
    loans.needs_torch = IsTorchInMode(torch_objects.torch);
  if (__builtin_expect(loans.needs_torch, 0) && receiver.home == &torch_framework)
    return CallTorch(match);
  return Run(match, &loans, receiver);
}

PyObject* ResolveAten(const AtenPacket& packet, PyObject* const* args, Py_ssize_t num_positional,
                      PyObject* keywords) {
  AtenLoans loans(packet.name.c_str());
  AtenGiven given;
  AtenMatch match;
  if (!Gather(packet, args, num_positional, keywords, &loans, &given) ||
      !Match(packet, &loans, given, &match))
    return nullptr;
  return PyUnicode_FromString(match.overload->op->full_name.c_str());
}

}  // namespace anyop
