// SPDX-License-Identifier: Apache-2.0
// torch's rules are those of torch.ops (pybind11's conversions by schema), not those of torch.add:
// an int is a bool, a tensor of one element is a number, None is a tensor.
#include "aten/aten_call.h"
#include "frameworks/torch.h"

namespace anyop {
namespace {

// An error of a conversion says that the value does not fit. What no overload could mend stays: the
// end of the stack or of memory, and a wish to stop.
void ClearMisfit() {
  if (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_RecursionError) ||
      PyErr_ExceptionMatches(PyExc_MemoryError) || !PyErr_ExceptionMatches(PyExc_Exception))
    return;
  PyErr_Clear();
}

struct Fitting {
  AtenLoans* loans;
  const aten::Op& op;
  const aten::Param& p;
  const AtenRules& rules;

  bool One(const Given& given, bool optional, AnyopAtenValue* value) const;
  bool List(const Given& given, AnyopAtenValue* value) const;

 private:
  bool Number(const Given& given, AnyopAtenValue* value) const;
  bool Cut(const Given& given, AnyopAtenValue* value) const;
  bool FromObject(const Given& given, AnyopAtenValue* value) const;
  bool LeaveToTorch(AnyopAtenValue* value) const;
  bool Named(const Given& given, AnyopAtenValue* value) const;
  bool Repeated(const Given& given, AnyopAtenValue* value) const;
  bool Elements(PyObject* tuple, AnyopAtenValue* value) const;
  PyObject* Sequence(const Given& given) const;
};

// int, float and bool.
bool Fitting::Number(const Given& given, AnyopAtenValue* value) const {
  const bool is_int = given.IsInteger();
  switch (p.type.kind) {
    case kAnyopAtenKindDtype:
    case kAnyopAtenKindLayout:
    case kAnyopAtenKindMemoryFormat:
    case kAnyopAtenKindInt:
      if (is_int) return *value = Integer(kAnyopAtenInt, given.value.as.i), true;
      break;
    case kAnyopAtenKindFloat:
      if (given.Is(kAnyopAtenFloat)) return *value = given.value, true;
      if (!is_int) break;
      *value = Tagged(kAnyopAtenFloat);
      value->as.f = static_cast<double>(given.value.as.i);
      return true;
    default:
      if (is_int) return *value = Integer(kAnyopAtenBool, given.value.as.i != 0), true;
      if (given.Is(kAnyopAtenFloat))
        return *value = Integer(kAnyopAtenBool, given.value.as.f != 0), true;
      if (given.Is(kAnyopAtenNone)) return *value = Integer(kAnyopAtenBool, 0), true;
  }
  return FromObject(given, value);
}

// A tensor of one element, an object with __index__ or __float__.
bool Fitting::FromObject(const Given& given, AnyopAtenValue* value) const {
  if (!given.IsTensor() && !given.Is(kGivenOther)) return false;
  loans->ran_code = true;
  if (given.Is(kGivenOther) && IsSymbolic(given.object)) return LeaveToTorch(value);
  if (p.type.kind == kAnyopAtenKindInt && !p.symbolic &&
      ToNamed(kAnyopAtenKindDtype, given.object, true, value))
    return true;
  Ref number;
  if (given.IsTensor())
    number = Ref(PyObject_CallMethod(given.object, "item", nullptr));
  else if (p.type.kind == kAnyopAtenKindInt && PyIndex_Check(given.object))
    number = Ref(PyNumber_Index(given.object));
  else if (p.type.kind == kAnyopAtenKindFloat && PyNumber_Check(given.object))
    number = Ref(PyNumber_Float(given.object));
  Given found;
  const bool good = number && !PyLong_Check(given.object) &&
                    (PyLong_Check(number.get()) || PyFloat_Check(number.get())) &&
                    loans->Look(number.get(), &found) && !found.Is(kGivenOther);
  ClearMisfit();
  if (good && given.IsTensor() && found.Is(kAnyopAtenFloat)) return Cut(found, value);
  return good && Number(found, value);
}

// A floating tensor of one element as an integer, which torch.ops takes and cuts. What is whole is
// taken here, too; a call that would cut is refused, so that no other overload steps in.
bool Fitting::Cut(const Given& found, AnyopAtenValue* value) const {
  if (p.type.kind == kAnyopAtenKindFloat || p.type.kind == kAnyopAtenKindBool)
    return Number(found, value);
  const double number = found.value.as.f;
  if (!(number >= -0x1p63 && number < 0x1p63)) return false;
  *value = Integer(kAnyopAtenInt, static_cast<int64_t>(number));
  if (static_cast<double>(value->as.i) != number) *rules.spoils = true;
  return true;
}

bool Fitting::LeaveToTorch(AnyopAtenValue* value) const {
  loans->needs_torch = true;
  *value = Integer(kAnyopAtenInt, 0);
  return true;
}

// torch.ops takes codes for names, too: whatever is an integer.
bool Fitting::Named(const Given& given, AnyopAtenValue* value) const {
  const auto kind = static_cast<AnyopAtenKind>(p.type.kind);
  const bool is_code = given.IsInteger() || given.IsTensor();
  if (is_code && kind != kAnyopAtenKindDevice) {
    if (!Number(given, value)) return false;
    const auto code = static_cast<int32_t>(value->as.i);
    if (value->as.i != code || !aten::NameOf(kind, code)) *rules.spoils = true;
    return true;
  }
  return (given.Is(kGivenOther) || given.Is(kAnyopAtenStr)) &&
         ToNamed(kind, given.object, rules.strict, value);
}

bool Fitting::One(const Given& given, bool optional, AnyopAtenValue* value) const {
  if (given.Is(kAnyopAtenNone) && optional) return *value = given.value, true;
  switch (p.type.kind) {
    case kAnyopAtenKindTensor:
      *value = given.value;
      if (given.IsTensor()) return true;
      if (given.Is(kAnyopAtenNone)) return !p.IsList();  // an undefined tensor
      if (!op.numbers_as_tensors || (p.IsList() && !p.Is(kAnyopAtenOptionalElements))) return false;
      if (given.Is(kGivenOther)) return IsSymbolic(given.object) && LeaveToTorch(value);
      return !given.Is(kAnyopAtenStr);
    case kAnyopAtenKindScalar:
      *value = given.value;
      if (given.Is(kGivenOther)) return IsSymbolic(given.object) && LeaveToTorch(value);
      return given.IsReal() || given.Is(kAnyopAtenComplex);
    case kAnyopAtenKindInt:
    case kAnyopAtenKindFloat:
    case kAnyopAtenKindBool:
      return Number(given, value);
    case kAnyopAtenKindStr:
      *value = given.value;
      return given.Is(kAnyopAtenStr);
    case kAnyopAtenKindGenerator:
      if (given.Is(kGivenTraced))
        return *value = Integer(kAnyopAtenSeed, 0), true;  // a seed that JAX traces
      return (given.Is(kGivenOther) || given.Is(kAnyopAtenInt)) &&
             ToGenerator(given.object, rules.strict, value);
    case kAnyopAtenKindOther:  // torch's own affair
      return loans->home == &torch_framework && given.Is(kGivenOther) &&
             IsTorchObject(given.object) && LeaveToTorch(value);
    default:
      return Named(given, value);
  }
}

// int[2]: one int stands for both. torch.ops does not do so for SymInt[2], but torch.conv2d does.
bool Fitting::Repeated(const Given& given, AnyopAtenValue* value) const {
  const bool torchs = p.type.kind == kAnyopAtenKindInt
                          ? !p.symbolic && !given.Is(kAnyopAtenFloat)
                          : p.type.kind == kAnyopAtenKindFloat && given.Is(kAnyopAtenFloat);
  AnyopAtenValue number;
  if (!torchs && (rules.strict || given.Is(kAnyopAtenBool))) return false;
  if (!One(given, false, &number)) return false;
  *value = Tagged(kAnyopAtenList);
  value->as.list = loans->arena->Take<AnyopAtenValue>(p.fixed_count + 1);
  value->more.count = p.fixed_count;
  for (int32_t i = 0; i < p.fixed_count; ++i) value->as.list[i] = number;
  return true;
}

bool Fitting::Elements(PyObject* tuple, AnyopAtenValue* value) const {
  const Py_ssize_t count = PyTuple_Size(tuple);
  auto* items = loans->arena->Take<AnyopAtenValue>(count + 1);
  for (Py_ssize_t i = 0; i < count; ++i) {
    Given element;
    if (!loans->Look(PyTuple_GetItem(tuple, i), &element) ||
        !One(element, p.Is(kAnyopAtenOptionalElements), &items[i]))
      return false;
  }
  *value = Tagged(kAnyopAtenList);
  value->as.list = items;
  value->more.count = count;
  return true;
}

// A tuple, which holds its elements whatever happens to a list meanwhile; nullptr: it is none.
PyObject* Fitting::Sequence(const Given& given) const {
  PyObject* object = given.object;
  if (PyTuple_Check(object)) return object;
  if (PyList_Check(object)) return loans->Keep(PySequence_Tuple(object));
  PyObject* tuple = nullptr;
  loans->ran_code = true;
  if (given.IsTensor()) {
    const bool torchs = given.value.tag == kAnyopAtenTorch;
    const AtenLoan* loan = LoanOf(given.value);
    const bool ints = !rules.strict && !torchs && (!loan || loan->memory.tensor.dtype_code <= 1);
    if (p.type.kind == kAnyopAtenKindInt && (ints || p.symbolic)) {
      const Ref list(PyObject_CallMethod(object, "tolist", nullptr));  // sizes in an array
      tuple = list && PyList_Check(list.get()) ? PySequence_Tuple(list.get()) : nullptr;
    } else if (p.IsTensor() && p.Is(kAnyopAtenOptionalElements) && torchs) {
      tuple = PySequence_Tuple(object);  // torch takes it apart
    } else if (p.type.kind == kAnyopAtenKindScalar && PyObject_Size(object) == 0) {
      tuple = PyTuple_New(0);
    }
  } else if (given.Is(kGivenOther) && PySequence_Check(object) && !PyType_Check(object) &&
             !PyBytes_Check(object)) {
    tuple = PySequence_Tuple(object);
  }
  ClearMisfit();
  return loans->Keep(tuple);
}

bool Fitting::List(const Given& given, AnyopAtenValue* value) const {
  if (given.Is(kAnyopAtenNone)) {
    *value = given.value;
    return p.Is(kAnyopAtenOptional);
  }
  if (given.IsReal()) return p.fixed_count >= 0 && Repeated(given, value);
  PyObject* tuple = Sequence(given);
  return tuple && Elements(tuple, value);
}

}  // namespace

bool Fit(AtenLoans* loans, const aten::Op& op, const aten::Param& p, const Given& given,
         const AtenRules& rules, AnyopAtenValue* value) {
  const Fitting fitting = {loans, op, p, rules};
  return p.IsList() ? fitting.List(given, value)
                    : fitting.One(given, p.Is(kAnyopAtenOptional), value);
}

}  // namespace anyop
