// SPDX-License-Identifier: Apache-2.0
// Runs a plan: one call of an operator. Part of torch_aten_glue.cc.
#pragma once

#include <ATen/core/List.h>

#include "torch_aten_plan.h"
#include "torch_aten_view.h"

namespace anyop::glue {

using torch::jit::Stack;

// One run of a plan.
class Machine {
 public:
  Machine(const Plan& plan, const AnyopAtenValue* given, Stack* stack)
      : plan_(plan),
        stack_(*stack),
        arguments_{plan.types.data(), given, static_cast<int32_t>(plan.types.size())} {
    for (int32_t i = 0; i < arguments_.count; ++i) {
      c10::TensorImpl* made = MadeFor(given[i]);
      values_.push_back(made && plan.into < 0 ? TensorOf(made) : arguments_.Convert(i));
    }
    values_.resize(plan.num_values);
    results_.resize(plan.num_results);
  }

  void Compute() {
    const bool into = plan_.into >= 0 && CanWriteInto();
    for (size_t at = into ? static_cast<size_t>(plan_.into) : 0;
         plan_.steps[at].kind != kAnyopAtenStepEnd;)
      at = Step(plan_.steps[at], at);
    into ? CheckWritten() : CheckResults();
  }

  // From here on an error is an error: results may be arguments.
  void Write() {
    for (size_t i = 0; i < results_.size(); ++i)
      if (results_[i].defined() &&
          !GiveTo(MadeFor(arguments_.values[plan_.num_inputs + i]), results_[i]))
        Copy(std::move(results_[i]), Place(i).toTensor());
  }

  // The parameter whose memory something still refers to; -1: none.
  int32_t TakeBack() {
    stack_.clear();
    values_.clear();
    results_.clear();
    return arguments_.loans.TakeBack();
  }

 private:
  // The tensor that torch has made for a result; nullptr: none, or one of a device above this.
  static c10::TensorImpl* MadeFor(const AnyopAtenValue& place) {
    if (place.tag != kAnyopAtenMemoryOf || !place.as.memory->owner) return nullptr;
    auto* made = static_cast<c10::TensorImpl*>(place.as.memory->owner);
    const int32_t device_type = place.as.memory->tensor.device_type;
    return made->device_type() == PlaceOf(device_type).torch ? made : nullptr;
  }
  static at::Tensor TensorOf(c10::TensorImpl* impl) {
    return at::Tensor(
        c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(impl));
  }

  const IValue& Place(size_t result) const { return values_[plan_.num_inputs + result]; }

  // Not where a result is an argument's memory: not every kernel of ATen can do with that.
  bool CanWriteInto() const {
    for (size_t i = 0; i < plan_.num_results; ++i) {
      if (Place(i).isNone()) return false;
      const at::Tensor& place = Place(i).toTensor();
      if (!place.is_contiguous()) return false;
      for (const Loan& loan : arguments_.loans)
        if (static_cast<size_t>(loan.argument) < plan_.num_inputs &&
            loan.storage.data() == place.storage().data())
          return false;
    }
    return true;
  }

  IValue Pop() {
    Need(!stack_.empty());
    IValue top = std::move(stack_.back());
    stack_.pop_back();
    return top;
  }
  at::Tensor PopTensor() {
    IValue top = Pop();
    Need(top.isTensor());
    return std::move(top).toTensor();
  }
  const IValue& Top() const { return Need(!stack_.empty()), stack_.back(); }
  template <typename T>
  void Push(T&& value) {
    stack_.emplace_back(std::forward<T>(value));
  }

  // The step that comes next.
  size_t Step(const AnyopAtenStep& step, size_t at) {
    const auto index = static_cast<size_t>(step.number);
    switch (step.kind) {
      case kAnyopAtenStepConstant:
        Push(plan_.constants[index]);
        break;
      case kAnyopAtenStepValue:
        Push(values_[index]);
        break;
      case kAnyopAtenStepName:
        values_[index] = Pop();
        break;
      case kAnyopAtenStepCall:
        Call(plan_.calls[index]);
        break;
      case kAnyopAtenStepItem:
        Item(index);
        break;
      case kAnyopAtenStepInts:
        List<int64_t>(index, [](const IValue& v) { return Need(v.isInt()), v.toInt(); });
        break;
      case kAnyopAtenStepBools:
        List<bool>(index, [](const IValue& v) { return Need(v.isBool()), v.toBool(); });
        break;
      case kAnyopAtenStepTensors:
        List<at::Tensor>(index, [](const IValue& v) { return Need(v.isTensor()), v.toTensor(); });
        break;
      case kAnyopAtenStepJump:
        return index;
      case kAnyopAtenStepJumpUnless:
        return IsTrue(Pop()) ? at + 1 : index;
      case kAnyopAtenStepAnd:
      case kAnyopAtenStepOr:
        if (IsTrue(Top()) == (step.kind == kAnyopAtenStepOr)) return index;
        Pop();
        break;
      case kAnyopAtenStepResult:
        results_[index] = PopTensor();
        break;
      case kAnyopAtenStepResults:
        Results(Pop());
        break;
      default:
        Push(Answer(step));
    }
    return at + 1;
  }

  // What a step makes of the top, or of the two values there.
  IValue Answer(const AnyopAtenStep& step) {
    switch (step.kind) {
      case kAnyopAtenStepSize:
        return Size(PopTensor().sizes(), step.number);
      case kAnyopAtenStepShape:
        return c10::List<int64_t>(PopTensor().sizes());
      case kAnyopAtenStepDtype:
        return static_cast<int64_t>(PopTensor().scalar_type());
      case kAnyopAtenStepIsCpu:
        return PopTensor().is_cpu();
      case kAnyopAtenStepIsNarrow:
        return IsNarrow(Top());
      case kAnyopAtenStepIsNone:
        return Pop().isNone();
      case kAnyopAtenStepNot:
        return !IsTrue(Pop());
      case kAnyopAtenStepNegate:
        return Negative(Pop());
      default:
        break;
    }
    const IValue b = Pop(), a = Pop();
    if (step.kind == kAnyopAtenStepNumber) return Number(a, b);
    if (step.kind == kAnyopAtenStepArithmetic)
      return Arithmetic(static_cast<char>(step.number), a, b);
    Need(step.kind == kAnyopAtenStepEqual && !a.isTensor() && !b.isTensor());
    return a == b;
  }

  void Call(const PlanCall& call) {
    Need(stack_.size() >= call.num_arguments);
    const size_t base = stack_.size() - call.num_arguments;
    for (size_t i = 0; i < call.num_arguments; ++i) Fit(call.types[i], &stack_[base + i]);
    call.op.callBoxed(stack_);
    Need(stack_.size() == base + call.num_results);
    for (size_t i = base; i < stack_.size(); ++i)
      if (stack_[i].isTensor() && !stack_[i].toTensor().defined()) stack_[i] = IValue();
    if (call.num_results == 1) return;
    std::vector<IValue> all(std::make_move_iterator(stack_.begin() + static_cast<int64_t>(base)),
                            std::make_move_iterator(stack_.end()));
    stack_.resize(base);
    Push(c10::ivalue::Tuple::create(std::move(all)));
  }

  void Item(size_t at) {
    const IValue all = Pop();
    Need(all.isTuple() || all.isTensorList());
    Need(at < (all.isTuple() ? all.toTupleRef().elements().size() : all.toListRef().size()));
    Push(all.isTuple() ? all.toTupleRef().elements()[at] : all.toListRef()[at]);
  }

  template <typename T, typename Convert>
  void List(size_t count, const Convert& convert) {
    Need(stack_.size() >= count);
    c10::List<T> list;
    list.reserve(count);
    for (size_t i = stack_.size() - count; i < stack_.size(); ++i)
      list.push_back(convert(stack_[i]));
    stack_.resize(stack_.size() - count);
    Push(std::move(list));
  }

  void Results(const IValue& all) {
    Need(all.isTuple() && all.toTupleRef().elements().size() == results_.size());
    for (size_t i = 0; i < results_.size(); ++i) {
      if (Place(i).isNone()) continue;
      const IValue& one = all.toTupleRef().elements()[i];
      Need(one.isTensor());
      results_[i] = one.toTensor();
    }
  }

  // Nothing is broadcast or resized in silence.
  void CheckResults() const {
    for (size_t i = 0; i < results_.size(); ++i) {
      if (Place(i).isNone()) continue;
      const at::Tensor& found = results_[i];
      Need(found.defined() && found.has_storage() && found.sizes() == Place(i).toTensor().sizes());
    }
  }
  void CheckWritten() const {
    for (const Loan& loan : arguments_.loans)
      Need(!loan.writes || (loan.HasItsStorage() && loan.HasItsShape() && !loan.impl->is_conj() &&
                            !loan.impl->is_neg()));
  }

  // Gives its memory to a tensor that was made for the result, where nothing else has that memory.
  static bool GiveTo(c10::TensorImpl* to, const at::Tensor& from) {
    if (!to || !from.storage().unique() || !from.is_contiguous() || from.storage_offset() ||
        from.nbytes() != from.storage().nbytes() || from.dtype() != to->dtype() ||
        from.device() != to->device() || from.is_conj() || from.is_neg() || from._is_zerotensor())
      return false;
    to->set_storage_keep_dtype(from.storage());
    return true;
  }

  void Copy(at::Tensor from, const at::Tensor& to) {
    for (const Loan& loan : arguments_.loans) {  // it may lie where another result goes
      if (from.storage().unsafeGetStorageImpl() != loan.storage.unsafeGetStorageImpl()) continue;
      from = Through("aten::clone", from);
      break;
    }
    constexpr size_t kFewBytes = 1 << 14;  // torch's copy_ costs more than these
    if (from.is_cpu() && to.is_cpu() && from.scalar_type() == to.scalar_type() &&
        from.nbytes() <= kFewBytes && from.is_contiguous() && to.is_contiguous() &&
        !from.is_conj() && !from.is_neg() && !from._is_zerotensor()) {
      std::memcpy(to.unsafeGetTensorImpl()->mutable_data(), from.unsafeGetTensorImpl()->data(),
                  from.nbytes());
      return;
    }
    static const c10::OperatorHandle copy =
        c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
    stack_.clear();
    Push(to);
    Push(std::move(from));
    Push(false);
    copy.callBoxed(stack_);
  }

  const Plan& plan_;
  Stack& stack_;
  Arguments arguments_;
  c10::SmallVector<IValue, 16> values_;
  c10::SmallVector<at::Tensor, 4> results_;
};

}  // namespace anyop::glue
