// SPDX-License-Identifier: Apache-2.0
// The operator's table says what the arguments are.
#include "operators/kernel_values.h"

#include <utility>

#include "gil.h"
#include "objects.h"
#include "operators/view.h"
#include "tensors/dtype.h"

namespace anyop {
namespace {

PyObject* Text(const AnyopString& s) {
  return s.data ? PyUnicode_FromStringAndSize(s.data, static_cast<Py_ssize_t>(s.count))
                : Py_NewRef(Py_None);
}

}  // namespace

void TorchWay::NoteRun(int32_t device_type) {
  if (!has_asked_) FindTorchLender(&lender);
  has_asked_ = true;
  if (lender.glue) ran_ |= uint32_t{1} << (device_type & 31);
}

std::unique_ptr<TorchWay> TakeTorchWay(PyObject* run) {
  const Ref direct = Attribute(run, "direct");
  if (!direct || !PyTuple_Check(direct.get()) || PyTuple_Size(direct.get()) != 2) {
    PyErr_Clear();
    return nullptr;
  }
  auto way = std::make_unique<TorchWay>();
  way->function = Ref(Py_NewRef(PyTuple_GetItem(direct.get(), 0)));
  PyObject* names = PyTuple_GetItem(direct.get(), 1);
  for (Py_ssize_t i = 0; i < PyTuple_Size(names); ++i) {
    PyObject* name = PyTuple_GetItem(names, i);
    way->names.emplace_back(name == Py_None ? nullptr : Py_NewRef(name));
  }
  return way;
}

void ForgetTorchWay(std::unique_ptr<TorchWay> way) {
  ReleaseObject(way->function.Release());
  for (Ref& name : way->names)
    if (name) ReleaseObject(name.Release());
}

KernelValues::~KernelValues() {
  for (const Held& held : held_) {
    if (held.view)
      Py_DECREF(held.view);
    else
      lender_->glue->take_back(held.lent);
  }
}

PyObject* KernelValues::Make() {
  const auto count = static_cast<Py_ssize_t>(op_.params.size());
  return NewTuple(count, [&](Py_ssize_t i) { return One(op_.params[static_cast<size_t>(i)]); });
}

bool KernelValues::Make(const std::vector<Ref>& names, Ref* positional, Ref* named) {
  if (names.size() != op_.params.size()) return false;
  Py_ssize_t count = 0;
  for (const Ref& name : names) count += !name;
  *positional = Ref(PyTuple_New(count));
  *named = Ref(PyDict_New());
  if (!*positional || !*named) return false;
  count = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    Ref value(One(op_.params[i]));
    if (!value) return false;
    if (!names[i])
      PyTuple_SetItem(positional->get(), count++, value.Release());
    else if (PyDict_SetItem(named->get(), names[i].get(), value.get()))
      return false;
  }
  return true;
}

const char* KernelValues::Kept() const {
  // Who holds a view's memory holds the view.
  for (const Held& held : held_) {
    if (held.view ? Py_REFCNT(held.view) > 1 : lender_->glue->is_kept(held.lent)) return held.name;
  }
  return nullptr;
}

PyObject* KernelValues::Tensor(const Param& p, const AnyopTensor* t) {
  if (!t || t->ndim < 0) return Py_NewRef(Py_None);
  held_.reserve(op_.params.size());
  if (!lender_) {
    PyObject* view = NewView(*t);
    if (view) held_.push_back({Py_NewRef(view), nullptr, p.name});
    return view;
  }
  void* impl = nullptr;
  void* lent = lender_->glue->lend(t, &impl);
  if (!lent) return nullptr;
  held_.push_back({nullptr, lent, p.name});
  PyObject* tensor = lender_->wrap(&impl);
  lender_->glue->release(impl);
  return tensor;
}

PyObject* KernelValues::Number(const Param& p, int64_t i) const {
  if (p.kind == kAnyopBoolean) return PyBool_FromLong(i != 0);
  if (p.kind != kAnyopScalarType) return PyLong_FromLongLong(i);
  const char* name = DtypeName(static_cast<int>(i));
  return lender_ ? PyObject_GetAttrString(lender_->torch, name) : PyUnicode_FromString(name);
}

PyObject* KernelValues::One(const Param& p) {
  if (p.IsList()) return List(p);
  if (p.IsTensor()) return Tensor(p, Field<const AnyopTensor*>(p));
  const bool may_lack = p.Is(kAnyopOptional) && p.kind != kAnyopStr;
  if (may_lack && !Field<AnyopOptionalInt>(p).has) return Py_NewRef(Py_None);
  return Value(p, args_ + p.offset);
}

PyObject* KernelValues::Value(const Param& p, const void* at) const {
  if (p.kind == kAnyopStr) return Text(*static_cast<const AnyopString*>(at));
  if (p.kind == kAnyopFloat) return PyFloat_FromDouble(*static_cast<const double*>(at));
  return Number(p, *static_cast<const int64_t*>(at));
}

PyObject* KernelValues::List(const Param& p) {
  const auto& list = Field<AnyopIntList>(p);
  if (!list.data) return Py_NewRef(Py_None);
  const auto* items = reinterpret_cast<const char*>(list.data);
  const int64_t bytes = p.kind == kAnyopStr ? sizeof(AnyopString) : 8;
  return NewList(list.count, [&](Py_ssize_t i) {
    return p.IsTensor() ? Tensor(p, reinterpret_cast<const AnyopTensor*>(items) + i)
                        : Value(p, items + i * bytes);
  });
}

}  // namespace anyop
