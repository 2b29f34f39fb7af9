// SPDX-License-Identifier: Apache-2.0
// Runs a plan: one call of an operator. Part of torch_aten_glue.cc.
#pragma once

#include <ATen/core/List.h>

#include "torch_aten_made.h"
#include "torch_aten_plan.h"

namespace anyop::glue {

using torch::jit::Stack;

// One run of a plan.
class Machine {
 public:
  Machine(const Plan& plan, const AnyopAtenValue* given, uint64_t deferred, Stack* stack)
      : plan_(plan),
        stack_(*stack),
        arguments_{plan.types.data(), given, static_cast<int32_t>(plan.types.size())},
        deferred_(deferred) {
    for (size_t i = 0; i < plan.types.size(); ++i) {
      const bool is_input = i < plan.num_inputs;
      c10::TensorImpl* torchs = is_input ? TorchsOwn(given[i]) : nullptr;
      if (torchs && torchs->data() == given[i].as.memory->tensor.data)  // else the copy of one
        values_.emplace_back(TensorOf(torchs));
      else if (is_input || (plan.into >= 0 && !IsDeferred(i - plan.num_inputs)))
        values_.push_back(arguments_.Convert(static_cast<int32_t>(i)));
      else
        values_.emplace_back();  // Place makes it where a text wants more than to know of it
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
  void Write(void** made, bool inference) {
    values_.resize(plan_.types.size());  // what parts with names are goes
    for (size_t i = 0; i < results_.size(); ++i) {
      if (!results_[i].defined()) continue;
      if (IsDeferred(i))
        made[i] = Own(std::move(results_[i]), Given(i).as.memory->tensor, inference).release();
      else if (!GiveTo(TorchsOwn(Given(i)), results_[i]))
        Copy(std::move(results_[i]), i);
    }
  }

  // The parameter whose memory something still refers to; -1: none.
  int32_t TakeBack() {
    stack_.clear();
    values_.clear();
    results_.clear();
    return arguments_.loans.TakeBack();
  }

 private:
  // The tensor of torch's that an input is, or that it has made for a result; nullptr: none, or one
  // of a device above this.
  static c10::TensorImpl* TorchsOwn(const AnyopAtenValue& value) {
    if (value.tag != kAnyopAtenMemoryOf || !value.as.memory->owner) return nullptr;
    auto* own = static_cast<c10::TensorImpl*>(value.as.memory->owner);
    const int32_t device_type = value.as.memory->tensor.device_type;
    return own->device_type() == PlaceOf(device_type).torch ? own : nullptr;
  }
  static at::Tensor TensorOf(c10::TensorImpl* impl) {
    return at::Tensor(
        c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(impl));
  }

  const AnyopAtenValue& Given(size_t result) const {
    return arguments_.values[plan_.num_inputs + result];
  }
  bool IsWanted(size_t result) const { return Given(result).tag == kAnyopAtenMemoryOf; }
  bool IsDeferred(size_t result) const { return deferred_ >> result & 1; }
  // What is written to a result that is wanted.
  const at::Tensor& Place(size_t result) {
    IValue& place = values_[plan_.num_inputs + result];
    if (!place.isNone()) return place.toTensor();
    c10::TensorImpl* const made = TorchsOwn(Given(result));
    place = IsDeferred(result) ? NewLike(Given(result).as.memory->tensor)
            : made ? TensorOf(made)
                   : arguments_.Convert(static_cast<int32_t>(plan_.num_inputs + result));
    return place.toTensor();
  }

  // Not where a result is an argument's memory: not every kernel of ATen can do with that.
  bool CanWriteInto() {
    for (size_t i = 0; i < plan_.num_results; ++i) {
      if (!IsWanted(i) || IsDeferred(i)) return false;
      const at::Tensor& place = Place(i);
      if (!place.is_contiguous()) return false;
      const void* const data = place.unsafeGetTensorImpl()->data();
      for (size_t k = 0; k < plan_.num_inputs; ++k)
        if (values_[k].isTensor() && values_[k].toTensor().unsafeGetTensorImpl()->data() == data)
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
        if (index >= plan_.num_inputs && values_[index].isNone() && index < plan_.types.size() &&
            IsWanted(index - plan_.num_inputs))
          return PlaceValue(index - plan_.num_inputs, at);
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

  // Of a result texts ask what it will be; what asks for more gets a tensor.
  size_t PlaceValue(size_t result, size_t at) {
    const AnyopTensor& place = Given(result).as.memory->tensor;
    const AnyopAtenStep& next = plan_.steps[at + 1];
    switch (next.kind) {
      case kAnyopAtenStepSize:
        Push(Size(SizesOf(place), next.number));
        break;
      case kAnyopAtenStepShape:
        Push(c10::List<int64_t>(SizesOf(place)));
        break;
      case kAnyopAtenStepDtype:
        Push(static_cast<int64_t>(DtypeOf(place).torch));
        break;
      case kAnyopAtenStepNumber:
        Push(Number(Pop(), DtypeOf(place).torch));
        break;
      default:
        Push(Place(result));
        return at + 1;
    }
    return at + 2;
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
    if (step.kind == kAnyopAtenStepNumber)
      return Need(b.isTensor()), Number(a, b.toTensor().scalar_type());
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
      if (!IsWanted(i)) continue;
      const IValue& one = all.toTupleRef().elements()[i];
      Need(one.isTensor());
      results_[i] = one.toTensor();
    }
  }

  // Nothing is broadcast or resized in silence.
  void CheckResults() const {
    for (size_t i = 0; i < results_.size(); ++i) {
      if (!IsWanted(i)) continue;
      const at::Tensor& found = results_[i];
      Need(found.defined() && found.has_storage() &&
           found.sizes() == SizesOf(Given(i).as.memory->tensor));
    }
  }
  void CheckWritten() const {
    for (const Loan& loan : arguments_.loans)
      Need(!loan.writes || (loan.HasItsStorage() && loan.HasItsShape() && !loan.impl->is_conj() &&
                            !loan.impl->is_neg()));
  }

  // Gives its memory to a tensor that was made for the result, where nothing else has that memory.
  static bool GiveTo(c10::TensorImpl* to, const at::Tensor& from) {
    if (!to || !HasAllOfItsMemory(from) || from.dtype() != to->dtype() ||
        from.device() != to->device())
      return false;
    to->set_storage_keep_dtype(from.storage());
    return true;
  }

  void Copy(at::Tensor from, size_t result) {
    for (const IValue& value : values_) {  // it may lie where another result goes
      if (!value.isTensor() || !value.toTensor().is_alias_of(from)) continue;
      from = Through("aten::clone", from);
      break;
    }
    const AnyopTensor& to = Given(result).as.memory->tensor;
    constexpr size_t kFewBytes = 1 << 14;  // torch's copy_ costs more than these
    if (from.nbytes() <= kFewBytes && from.is_contiguous() && IsRowMajor(to) && from.is_cpu() &&
        DeviceOf(to).is_cpu() && from.scalar_type() == DtypeOf(to).torch && !from.is_conj() &&
        !from.is_neg() && !from._is_zerotensor()) {
      std::memcpy(static_cast<char*>(to.data) + to.byte_offset, from.unsafeGetTensorImpl()->data(),
                  from.nbytes());
      return;
    }
    stack_.clear();
    CopyTo(Place(result), std::move(from), &stack_);
  }

  const Plan& plan_;
  Stack& stack_;
  Arguments arguments_;
  const uint64_t deferred_;  // bits of results
  c10::SmallVector<IValue, 16> values_;
  c10::SmallVector<at::Tensor, 4> results_;
};

}  // namespace anyop::glue
