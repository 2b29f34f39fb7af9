// SPDX-License-Identifier: Apache-2.0
// Plans, which are texts of schemas that anyop.backend.aten_plan has compiled, and what their steps
// do to values that are no tensors. Part of torch_aten_glue.cc.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cmath>
#include <memory>
#include <vector>

#include "torch_aten_arguments.h"

namespace anyop::glue {

struct PlanCall {
  c10::OperatorHandle op;
  const AnyopAtenType* types;
  size_t num_arguments, num_results;
};

struct Plan {
  std::vector<AnyopAtenStep> steps;
  std::vector<IValue> constants;
  std::vector<PlanCall> calls;
  std::vector<AnyopAtenType> types;
  size_t num_inputs, num_results, num_values;
  int32_t into;
};

// What cannot be done here as Python would: the call is made by Python then.
struct Unfit {};

inline void Need(bool fits) {
  if (__builtin_expect(!fits, 0)) throw Unfit();
}

// As Python takes it in a condition.
inline bool IsTrue(const IValue& value) {
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt() != 0;
  if (value.isDouble()) return value.toDouble() != 0;
  Need(value.isNone());
  return false;
}

inline IValue OfInts(char what, int64_t a, int64_t b) {
  int64_t found = 0;
  if (what == '+') return Need(!__builtin_add_overflow(a, b, &found)), found;
  if (what == '-') return Need(!__builtin_sub_overflow(a, b, &found)), found;
  if (what == '*') return Need(!__builtin_mul_overflow(a, b, &found)), found;
  if (what == '^') {
    Need(b < 64);
    for (found = 1; b > 0; --b) Need(!__builtin_mul_overflow(found, a, &found));
    return found;
  }
  Need(what == '%' && b != 0 && b != -1);
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

inline IValue Arithmetic(char what, const IValue& a, const IValue& b) {
  if (a.isInt() && b.isInt() && what != '/' && !(what == '^' && b.toInt() < 0))
    return OfInts(what, a.toInt(), b.toInt());
  const auto real = [](const IValue& value) {
    if (value.isDouble()) return value.toDouble();
    constexpr int64_t kExact = int64_t{1} << 53;
    Need(value.isInt() && value.toInt() <= kExact && value.toInt() >= -kExact);
    return static_cast<double>(value.toInt());
  };
  const double x = real(a), y = real(b);
  if (what == '+') return x + y;
  if (what == '-') return x - y;
  if (what == '*') return x * y;
  if (what == '/') return Need(y != 0), x / y;
  Need(what == '^' && x > 0);  // of a negative number it may be complex
  const double power = std::pow(x, y);
  return Need(std::isfinite(power)), power;
}

inline IValue Negative(const IValue& value) {
  return value.isDouble() ? IValue(-value.toDouble()) : Arithmetic('-', IValue(int64_t{0}), value);
}

// In that dimension; below 0: counted from the last.
inline IValue Size(c10::IntArrayRef sizes, int64_t d) {
  const auto count = static_cast<int64_t>(sizes.size());
  if (d < 0) d += count;
  Need(d >= 0 && d < count);
  return sizes[static_cast<size_t>(d)];
}

// Of 16 bits, for which ATen computes in float32.
inline bool IsNarrow(const IValue& value) {
  if (value.isNone()) return false;
  Need(value.isTensor());
  const ScalarType dtype = value.toTensor().scalar_type();
  return dtype == ScalarType::Half || dtype == ScalarType::BFloat16;
}

// The number, whole where a tensor of that dtype holds integers.
inline IValue Number(const IValue& value, ScalarType dtype) {
  if (value.isInt() || c10::isFloatingType(dtype) || c10::isComplexType(dtype)) return value;
  Need(value.isDouble() && std::fabs(value.toDouble()) < 0x1p63);
  return static_cast<int64_t>(value.toDouble());
}

// Makes an argument what the schema says that it is; most are.
inline void Fit(const AnyopAtenType& type, IValue* value) {
  if (value->isNone()) return Need(type.flags & kAnyopAtenOptional);
  const auto kind = static_cast<AnyopAtenKind>(type.kind);
  if (type.flags & kAnyopAtenIsList)
    return Need(kind == kAnyopAtenKindInt    ? value->isIntList()
                : kind == kAnyopAtenKindBool ? value->isBoolList()
                : kind == kAnyopAtenKindTensor
                    ? value->isTensorList() && !(type.flags & kAnyopAtenOptionalElements)
                : kind == kAnyopAtenKindFloat ? value->isDoubleList()
                                              : false);
  const bool is_number = value->isInt() || value->isDouble();
  switch (kind) {
    case kAnyopAtenKindTensor:
      return Need(value->isTensor());
    case kAnyopAtenKindScalar:
      return Need(is_number || value->isBool());
    case kAnyopAtenKindFloat:
      Need(is_number);
      if (value->isInt()) *value = static_cast<double>(value->toInt());
      return;
    case kAnyopAtenKindBool:
      return Need(value->isBool());
    case kAnyopAtenKindStr:
      return Need(value->isString());
    case kAnyopAtenKindInt:
    case kAnyopAtenKindDtype:
    case kAnyopAtenKindLayout:
    case kAnyopAtenKindMemoryFormat:
      Need(value->isInt());
      ToInt(type.kind, value->toInt());  // torch does not look whether a code is one
      return;
    default:
      throw Unfit();
  }
}

// Whether a step says what there is. Steps are run in order, so that they come to the end.
inline bool IsSound(const Plan& plan, const AnyopAtenStep& step, size_t at) {
  const auto within = [&](size_t count) {
    return step.number >= 0 && static_cast<size_t>(step.number) < count;
  };
  switch (step.kind) {
    case kAnyopAtenStepConstant:
      return within(plan.constants.size());
    case kAnyopAtenStepValue:
    case kAnyopAtenStepName:
      return within(plan.num_values);
    case kAnyopAtenStepCall:
      return within(plan.calls.size());
    case kAnyopAtenStepInts:
    case kAnyopAtenStepBools:
    case kAnyopAtenStepTensors:
      return within(64);
    case kAnyopAtenStepJump:
    case kAnyopAtenStepJumpUnless:
    case kAnyopAtenStepAnd:
    case kAnyopAtenStepOr:
      return within(plan.steps.size()) && static_cast<size_t>(step.number) > at;
    case kAnyopAtenStepResult:
      return within(plan.num_results);
    default:
      return step.kind >= 0 && step.kind < kAnyopAtenNumSteps;
  }
}

// nullptr where a step is none.
inline Plan* NewPlan(const AnyopAtenPlan& from) {
  auto plan = std::make_unique<Plan>();
  const auto count = [](int32_t n) { return static_cast<size_t>(n); };
  plan->steps.assign(from.steps, from.steps + from.num_steps);
  plan->types.assign(from.types, from.types + from.num_inputs + from.num_results);
  plan->num_inputs = count(from.num_inputs);
  plan->num_results = count(from.num_results);
  plan->num_values = count(from.num_values);
  plan->into = from.into;
  for (int32_t i = 0; i < from.num_constants; ++i) {
    const AnyopAtenType any = {kAnyopAtenKindOther, kAnyopAtenOptional, -1};
    plan->constants.push_back(Arguments{&any, &from.constants[i], 1}.Convert(0));
  }
  for (int32_t i = 0; i < from.num_calls; ++i) {
    const AnyopAtenPlanCall& call = from.calls[i];
    plan->calls.push_back({*static_cast<const c10::OperatorHandle*>(call.op), call.types,
                           count(call.num_arguments), count(call.num_results)});
  }
  for (size_t at = 0; at < plan->steps.size(); ++at) {
    AnyopAtenStep& step = plan->steps[at];
    if (step.kind == kAnyopAtenStepDefault) {
      const auto& arguments = plan->calls.at(count(step.number >> 6)).op.schema().arguments();
      plan->constants.push_back(arguments.at(count(step.number & 63)).default_value().value());
      step = {kAnyopAtenStepConstant, static_cast<int32_t>(plan->constants.size() - 1)};
    }
    if (!IsSound(*plan, step, at)) return nullptr;
  }
  const bool ends = !plan->steps.empty() && plan->steps.back().kind == kAnyopAtenStepEnd;
  return ends && plan->into < from.num_steps ? plan.release() : nullptr;
}

}  // namespace anyop::glue
