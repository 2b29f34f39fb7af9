// SPDX-License-Identifier: Apache-2.0
// One question to a row for each tensor; what the frame asks for while the call runs.
#include "operators/operator_loans.h"

#include "frameworks/dlpack.h"
#include "gil.h"
#include "objects.h"
#include "router/choose/device_below.h"
#include "tensors/memory.h"

namespace anyop {

void OperatorLoans::ReleaseMade() {
  for (; made_; made_ &= made_ - 1)
    mode.impls->release(ReleaseResult(static_cast<uint32_t>(__builtin_ctzll(made_))));
}

// The source of an object whose type is not the first one's. nullptr with an error raised, or where
// way() is kDispatch.
const Source* OperatorLoans::Find(const Operator& op, const Param& p, PyObject* object) {
  const Source* found = FindSource(object, &why);
  if (!found) {
    if (!PyErr_Occurred()) Refuse(op, p, PyExc_TypeError, why);
    return nullptr;
  }
  if (!source) return found;
  if (found->framework == &exchange_framework) NoteCode();  // of a foreign type's
  if (!Fits(*found)) return Refuse(op, p, PyExc_TypeError, MixedText(object)), nullptr;
  if (found->is_plain) return found;
  way_ = Way::kDispatch;
  return nullptr;
}

// The first tensor decides whose framework the call is in. False where way() is kDispatch.
bool OperatorLoans::SetFirst(Frame* frame, PyObject* object, const Source* found) {
  source = found;
  first = object;
  type = Py_TYPE(object);
  const Framework& row = *found->framework;
  if (!found->is_plain)
    way_ = Way::kDispatch;
  else if (row.read_mode)
    way_ = row.read_mode(&mode);
  if (mode.impls && !below_dispatcher) {
    frame->torch_input = [](Frame* of, uint32_t param) {
      return Of(of).mode.impls->of(Of(of).arguments_[param]);
    };
    frame->take_result = TakeResult;
  }
  if (way_ != Way::kDispatch) return true;
  PyErr_Clear();
  return false;
}

bool OperatorLoans::Take(Frame* frame, const Param& p, PyObject* object, AnyopTensor* tensor) {
  const Source* from = source;
  if (__builtin_expect(type != Py_TYPE(object), 0)) {
    from = Find(*frame->op, p, object);
    if (!from || (!source && !SetFirst(frame, object, from))) return false;
  }
  const bool writes = p.flags & (kAnyopOutput | kAnyopMutated);
  if (!first_tensor_) first_tensor_ = tensor;
  const Way way = from->framework->view(this, from, object, writes, tensor);
  if (__builtin_expect(way != Way::kPlain, 0) && !Settle(*frame->op, p, way)) return false;
  if (writes && source->framework->mark_written) NoteWritten(object);
  return true;
}

// What a tensor asks for that is not plain. False where it is not taken.
bool OperatorLoans::Settle(const Operator& op, const Param& p, Way way) {
  if (way != Way::kRefused) {
    way_ = way;
    if (way == Way::kDispatch) PyErr_Clear();
    return way == Way::kGradient;
  }
  if (why.empty()) return false;  // an error of the object's own is set
  PyErr_Clear();
  return Refuse(op, p, why_kind, why);
}

void OperatorLoans::NoteWritten(PyObject* object) {
  if (num_written_ < 8)
    written_[num_written_++] = object;
  else
    more_written_.push_back(object);
}

bool OperatorLoans::TakeList(Frame* frame, const Param& p, uint32_t i) {
  PyObject* object = arguments_[i];
  if (!PyList_Check(object) && !PyTuple_Check(object)) {
    return Refuse(*frame->op, p, PyExc_TypeError,
                  "is " + ObjectText(Py_TYPE(object)) + ", expected a list of tensors");
  }
  // Holds the elements, whatever happens to the list meanwhile.
  PyObject* items = PySequence_Tuple(object);
  if (!items) return false;
  Keep(items);
  arguments_[i] = items;
  const Py_ssize_t count = PyTuple_Size(items);
  auto* tensors = frame->arena.Take<AnyopTensor>(count + 1);
  for (Py_ssize_t k = 0; k < count; ++k) {
    PyObject* item = PyTuple_GetItem(items, k);
    if (item == Py_None && p.Is(kAnyopOptionalElements)) {
      tensors[k] = {};
      tensors[k].ndim = -1;
    } else if (!Take(frame, p, item, &tensors[k])) {
      return false;
    } else if (tensors[k].ndim < 0) {  // would look like None
      return Refuse(*frame->op, p, PyExc_ValueError,
                    "has an element with a negative number of dimensions");
    }
  }
  frame->Field<AnyopTensorList>(p) = {tensors, count};
  return true;
}

template <typename Visit>
bool OperatorLoans::Each(Frame* frame, const Visit& visit) const {
  const auto& params = frame->op->params;
  for (uint32_t i = 0; i < params.size(); ++i) {
    const Param& p = params[i];
    if (!p.IsTensor() || !(frame->given >> i & 1)) continue;
    if (!p.IsList()) {
      if (!visit(p, arguments_[i], &frame->tensors[i])) return false;
      continue;
    }
    const auto& list = frame->Field<AnyopTensorList>(p);
    for (int64_t k = 0; k < list.count; ++k) {
      PyObject* item = PyTuple_GetItem(arguments_[i], static_cast<Py_ssize_t>(k));
      if (item != Py_None && !visit(p, item, const_cast<AnyopTensor*>(&list.data[k]))) return false;
    }
  }
  return true;
}

bool OperatorLoans::TakeAgain(Frame* frame) {
  num_written_ = 0;
  more_written_.clear();
  type = nullptr;
  return Each(frame, [&](const Param& p, PyObject* object, AnyopTensor* tensor) {
    std::string ignored;
    const Source* from = FindSource(object, &ignored);
    return (from && from->framework->view_holds) || Take(frame, p, object, tensor);
  });
}

// All at once.
void OperatorLoans::HoldImpls(Frame* frame) {
  uint64_t count = 0;
  const auto each = [&](const auto& visit) {
    Each(frame, [&](const Param&, PyObject* object, AnyopTensor*) { return visit(object), true; });
  };
  each([&](PyObject*) { ++count; });
  void** impls = frame->arena.Take<void*>(static_cast<int64_t>(count));
  count = 0;
  each([&](PyObject* object) { impls[count++] = mode.impls->of(object); });
  mode.impls->hold(this, impls, count);
}

void OperatorLoans::Hold(Frame* frame) {
  frame->hold = nullptr;
  auto* self = &Of(frame);
  const WithoutError without;  // of a kernel that asks for more
  if (self->mode.impls) {
    self->HoldImpls(frame);
  } else {
    self->Each(frame, [&](const Param&, PyObject* object, AnyopTensor*) {
      std::string ignored;
      const Source* from = FindSource(object, &ignored);
      if (from && from->framework->hold) from->framework->hold(self, from, object);
      return true;
    });
  }
}

bool OperatorLoans::AskStream(Frame* frame) const {
  const AnyopTensor& tensor = *first_tensor_;
  const auto ask = source->framework->stream;
  if (!ask) return true;
  if (tensor.device_type == kFrameworkDevice && HasDeviceBelow()) return true;  // the core asks it
  if (ask(source, tensor.device_type, tensor.device_id, &frame->stream)) return true;
  if (!PyErr_Occurred())
    PyErr_Format(PyExc_RuntimeError, "%s: the framework names no current stream on device %s:%d",
                 frame->op->name.c_str(), DeviceName(tensor.device_type).c_str(), tensor.device_id);
  return false;
}

// Python's lock may be another thread's: objects are made later.
void OperatorLoans::TakeResult(Frame* frame, uint32_t output, void* impl) {
  Of(frame).results_[output] = static_cast<PyObject*>(impl);
  Of(frame).made_ |= uint64_t{1} << output;
}

bool OperatorLoans::WrapAllMade() {
  for (; made_; made_ &= made_ - 1) {
    PyObject*& result = results_[__builtin_ctzll(made_)];
    result = mode.impls->wrap(result);
    if (!result) return made_ &= made_ - 1, false;
  }
  return true;
}

// The framework's refusal to make a result, as an error of the operator's.
int32_t OperatorLoans::Refused(Frame* frame, uint32_t output, const AnyopTensor& tensor) {
  const bool memory = PyErr_ExceptionMatches(PyExc_MemoryError);
  if (!memory && !PyErr_ExceptionMatches(PyExc_ValueError)) return kAnyopPending;
  TakenError error;
  std::string why;
  if (!error.Text(&why)) return error.SetAgain(), kAnyopPending;
  return Fail(frame, memory ? kAnyopOutOfMemory : kAnyopValueError, "%s would have shape %s: %s",
              frame->op->params[frame->op->num_inputs + output].name,
              SizesText(tensor.ndim, tensor.shape).c_str(), why.c_str());
}

int32_t OperatorLoans::Allocate(Frame* frame, uint32_t output, AnyopTensor* tensor) {
  auto* self = &Of(frame);
  if (self->mode.impls)
    frame->torch_result = [](Frame* of, uint32_t at) {
      return Of(of).mode.impls->of(Of(of).results_[at]);
    };
  const int32_t status = self->source->framework->allocate(self, tensor, &self->results_[output]);
  if (__builtin_expect(status == kAnyopOk, 1)) return status;
  if (status == kAnyopPending) return Refused(frame, output, *tensor);
  return Fail(frame, status, "%s %s", frame->op->params[frame->op->num_inputs + output].name,
              self->why.c_str());
}

}  // namespace anyop
