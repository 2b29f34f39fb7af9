// SPDX-License-Identifier: Apache-2.0
// torch wraps its tensors itself, NumPy gets an array over the memory, others take it by DLPack.
#include <cstring>
#include <map>
#include <memory>

#include "aten/aten_call.h"
#include "aten/aten_tensor.h"
#include "frameworks/numpy.h"
#include "frameworks/torch.h"
#include "module.h"
#include "objects.h"
#include "tensors/memory.h"

namespace anyop {
namespace {

constexpr char kCure[] = "; like=\"torch\" or like=\"aten\" takes it";

// A tensor that is let go of unless it is given on.
struct LetGo {
  void operator()(AnyopAtenTensor* tensor) const { AnyopAtenRelease(tensor); }
};
using Owned = std::unique_ptr<AnyopAtenTensor, LetGo>;

struct Returning {
  const AtenMatch& match;
  const AtenReceiver& receiver;

  PyObject* Value(const aten::Param& p, AnyopAtenValue* value) const;

 private:
  PyObject* Tensor(const aten::Param& p, AnyopAtenTensor* tensor) const;
  PyObject* Memory(const aten::Param& p, AnyopAtenTensor* tensor) const;
  PyObject* ByExchange(Owned* owned, const AnyopTensor& view, uint32_t flags) const;
  PyObject* ByFunction(Owned* owned, const AnyopTensor& view) const;
  PyObject* Array(Owned* owned, const AnyopTensor& view, uint32_t flags) const;
  PyObject* Fail(PyObject* kind, const std::string& why) const {
    return Raise(kind, match.overload->op->full_name + ": " + why);
  }
};

bool IsSame(const AnyopTensor& a, const AnyopTensor& b) {
  if (a.ndim != b.ndim || a.dtype_code != b.dtype_code || a.dtype_bits != b.dtype_bits)
    return false;
  bool empty = false;
  for (int d = 0; d < a.ndim; ++d) {
    if (a.shape[d] != b.shape[d]) return false;
    empty |= a.shape[d] == 0;
  }
  if (empty) return true;
  int64_t straight = 1;
  for (int d = a.ndim - 1; d >= 0; --d) {
    const int64_t stride = b.strides ? b.strides[d] : straight;
    if (a.shape[d] > 1 && a.strides[d] != stride) return false;
    straight *= a.shape[d];
  }
  return static_cast<char*>(a.data) + a.byte_offset == static_cast<char*>(b.data) + b.byte_offset;
}

std::string SizesOf(const AnyopTensor& t) { return SizesText(t.ndim, t.shape); }

// Whether the memory has no holes and nothing lies twice in it, in whatever order: JAX takes
// nothing else. The core's IsDense is not among what its library gives to others.
bool LiesDensely(const AnyopTensor& t) {
  if (t.ndim > 64) return true;  // JAX will say what it makes of it
  int64_t expected = 1;
  uint64_t done = 0;
  for (int d = 0; d < t.ndim; ++d) {
    if (t.shape[d] == 0) return true;
    if (t.shape[d] == 1) done |= uint64_t{1} << d;
  }
  for (int d = 0; d < t.ndim; ++d) {
    if ((done >> d & 1) || t.strides[d] != expected) continue;
    done |= uint64_t{1} << d;
    expected *= t.shape[d];
    d = -1;  // from the first again
  }
  return t.ndim == 0 || done == ~uint64_t{0} >> (64 - t.ndim);
}

// Replaces the tensor by a row-major copy. False with an error raised.
bool MakeDense(Owned* tensor) {
  AnyopAtenValue arguments[2] = {}, result = {};
  arguments[0].tag = kAnyopAtenTorch;
  arguments[0].as.tensor = tensor->get();
  arguments[1].tag = kAnyopAtenStr;
  arguments[1].as.s = "contiguous_format";
  arguments[1].more.count = static_cast<int64_t>(std::strlen(arguments[1].as.s));
  const AnyopAtenOp* clone = AnyopAtenFind("clone");
  const int32_t status =
      clone ? AnyopAtenCall(clone, arguments, 2, &result, nullptr) : int32_t{kAnyopInternalError};
  if (status) return RaiseStatus(status, AnyopLastError());
  tensor->reset(result.as.tensor);
  return true;
}

void* ImplIn(AnyopAtenTensor* cell) { return *reinterpret_cast<void**>(cell); }

PyObject* Wrap(AnyopAtenTensor* tensor) {
  const Owned owned(tensor);
  return torch_objects.wrap(reinterpret_cast<void* const*>(tensor));
}

PyObject* Returning::Tensor(const aten::Param& p, AnyopAtenTensor* tensor) const {
  if (__builtin_expect(receiver.home == &torch_framework, 1)) return Wrap(tensor);
  if (p.type.alias >= 0 && static_cast<uint32_t>(p.type.alias) < match.count) {
    const AnyopAtenValue& argument = match.values[p.type.alias];
    if (argument.tag == kAnyopAtenTorch && ImplIn(argument.as.tensor) == ImplIn(tensor)) {
      const Owned owned(tensor);
      return Py_NewRef(match.objects[p.type.alias]);
    }
  }
  return receiver.home == &aten_home ? NewAtenTensor(tensor) : Memory(p, tensor);
}

// For others than torch.
PyObject* Returning::Memory(const aten::Param& p, AnyopAtenTensor* tensor) const {
  AnyopTensor view;
  uint32_t flags = 0;
  const int32_t status = AnyopAtenView(&tensor, &view, &flags);
  Owned owned(tensor);
  if (status) {
    if (status != kAnyopTypeError) return RaiseStatus(status, AnyopLastError());
    return Fail(PyExc_TypeError,
                std::string("a result has no memory to take: ") + AnyopLastError() + kCure);
  }
  const bool aliases = p.type.alias >= 0 && static_cast<uint32_t>(p.type.alias) < match.count;
  const AtenLoan* loan = aliases ? LoanOf(match.values[p.type.alias]) : nullptr;
  const aten::Param* argument = aliases ? &match.overload->op->params[p.type.alias] : nullptr;
  if (loan && argument->Is(kAnyopAtenWrites)) {
    if (IsSame(view, loan->memory.tensor)) return Py_NewRef(loan->object);
    if (argument->keyword_only)
      return Fail(PyExc_ValueError, argument->name + " has shape " + SizesOf(loan->memory.tensor) +
                                        ", the result has " + SizesOf(view) +
                                        "; nothing is resized here");
  }
  if (receiver.home->take.module) return ByFunction(&owned, view);
  return receiver.source && receiver.source->api ? ByExchange(&owned, view, flags)
                                                 : Array(&owned, view, flags);
}

// Late where it lends: a framework may free tensors under a lock of its own, inside of which no
// other one may be freed.
PyObject* Returning::ByExchange(Owned* owned, const AnyopTensor& view, uint32_t flags) const {
  DLManagedTensorVersioned* managed = NewManaged(owned->release(), view, flags, receiver.lends);
  void* made = nullptr;
  if (!managed || receiver.source->api->managed_tensor_to_py_object_no_sync(managed, &made))
    return nullptr;
  return static_cast<PyObject*>(made);
}

// By a function that takes what has __dlpack__.
PyObject* Returning::ByFunction(Owned* owned, const AnyopTensor& view) const {
  const Framework& home = *receiver.home;
  if (home.is_immutable && !LiesDensely(view) && !MakeDense(owned)) return nullptr;
  static auto* functions = new std::map<const Framework*, PyObject*>;
  PyObject*& function = (*functions)[&home];
  if (!function) {
    Ref found = Imported(home.take.module, home.take.name);
    if (!found) return nullptr;
    function = found.Release();
  }
  const Ref holder(NewAtenTensor(owned->release(), /*for_reader=*/home.is_immutable));
  return holder ? PyObject_CallFunctionObjArgs(function, holder.get(), nullptr) : nullptr;
}

PyObject* Returning::Array(Owned* owned, const AnyopTensor& view, uint32_t flags) const {
  if (view.device_type != kDLCPU)
    return Fail(PyExc_TypeError,
                "a result is not in host memory, where NumPy's arrays are; like= takes it");
  const Ref holder(NewAtenTensor(owned->release()));
  std::string why;
  PyObject* array =
      holder ? NewArrayOver(view, holder.get(), !(flags & kAnyopAtenReadOnly), &why) : nullptr;
  return array || why.empty() ? array : Fail(PyExc_TypeError, "a result " + why + kCure);
}

PyObject* Returning::Value(const aten::Param& p, AnyopAtenValue* value) const {
  switch (value->tag) {
    case kAnyopAtenTorch:
      value->tag = kAnyopAtenNone;  // taken over
      return Tensor(p, value->as.tensor);
    case kAnyopAtenFloat:
      return PyFloat_FromDouble(value->as.f);
    case kAnyopAtenBool:
      return PyBool_FromLong(value->as.i != 0);
    case kAnyopAtenComplex:
      return PyComplex_FromDoubles(value->as.f, value->more.imag);
    case kAnyopAtenStr:
      return PyUnicode_FromStringAndSize(value->as.s, static_cast<Py_ssize_t>(value->more.count));
    case kAnyopAtenInt:
      if (p.type.kind == kAnyopAtenKindInt || p.type.kind == kAnyopAtenKindScalar)
        return PyLong_FromLongLong(value->as.i);
      return FromNamed(static_cast<AnyopAtenKind>(p.type.kind), *value,
                       receiver.home == &torch_framework);
    case kAnyopAtenDevice:
      return FromNamed(kAnyopAtenKindDevice, *value, receiver.home == &torch_framework);
    case kAnyopAtenList:
      return NewList(value->more.count, [&](Py_ssize_t i) { return Value(p, &value->as.list[i]); });
    default:
      Py_RETURN_NONE;
  }
}

// Of like=, which is a tensor or the name of a framework. False with an error raised.
bool FindLike(PyObject* like, AtenReceiver* receiver) {
  if (PyUnicode_Check(like)) {
    const bool is_nobodys = PyUnicode_CompareWithASCIIString(like, aten_home.name) == 0;
    receiver->home = is_nobodys ? &aten_home : FrameworkOf(like);
    const bool imports = receiver->home && receiver->home->import;
    receiver->source = imports ? receiver->home->import() : nullptr;
    if (imports && !receiver->source) return false;
  } else {
    AtenLoans other("like");
    Given given;
    if (!other.Look(like, &given)) return false;
    receiver->home = other.home;
    receiver->source = other.source;
  }
  if (!receiver->home)
    PyErr_Format(PyExc_TypeError, "like: got %R, expected a tensor or one of %s, %s", like,
                 FrameworkNames().c_str(), aten_home.name);
  return receiver->home;
}

}  // namespace

bool FindReceiver(AtenLoans* loans, PyObject* like, AtenReceiver* receiver) {
  *receiver = {loans->home, loans->source, false};
  if (like && like != Py_None && !FindLike(like, receiver)) return false;
  if (!receiver->home) receiver->home = &numpy_framework;
  std::string why;
  if (receiver->home != &numpy_framework || ImportNumpy(&why)) return true;
  return Raise(PyExc_TypeError, "aten: the result " + why);
}

PyObject* AtenResults(const AtenMatch& match, const AtenReceiver& receiver,
                      AnyopAtenValue* results) {
  const aten::Op& op = *match.overload->op;
  const auto count = static_cast<int32_t>(op.results.size());
  const Returning returning = {match, receiver};
  if (__builtin_expect(count == 1 && results[0].tag == kAnyopAtenTorch, 1))
    return returning.Value(op.results[0], &results[0]);
  if (count == 0) Py_RETURN_NONE;
  const auto value = [&](Py_ssize_t i) {
    return returning.Value(op.results[static_cast<size_t>(i)], &results[i]);
  };
  PyObject* made = count == 1 ? value(0) : NewTuple(count, value);
  AnyopAtenDrop(results, count);  // what was not taken over
  return made;
}

}  // namespace anyop
