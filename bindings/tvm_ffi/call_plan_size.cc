// SPDX-License-Identifier: Apache-2.0
// Computes the integer expressions of a call from the argument struct.
#include "anyop/forms/size_math.h"
#include "call_plan.h"

namespace anyop::ffi {
namespace {

int64_t Leaf(const PlanStep& step, const Operator& op, const char* args) {
  if (step.kind == PlanStep::kConst) return step.value;
  if (step.kind == PlanStep::kSize) {
    return reinterpret_cast<const int64_t*>(args + op.sizes_offset)[step.value];
  }
  const char* field = args + op.params[static_cast<size_t>(step.value)].offset;
  if (step.kind == PlanStep::kParam) return *reinterpret_cast<const int64_t*>(field);
  const AnyopTensor* tensor = *reinterpret_cast<const AnyopTensor* const*>(field);
  int64_t numel = tensor ? 1 : 0;
  for (int i = 0; tensor && i < tensor->ndim; ++i) {
    numel = AnyopSizeMultiply(numel, tensor->shape[i]);
  }
  return numel;
}

int64_t Combine(PlanStep::Kind kind, int64_t a, int64_t b) {
  switch (kind) {
    case PlanStep::kAdd:
      return AnyopSizeAdd(a, b);
    case PlanStep::kSubtract:
      return AnyopSizeSubtract(a, b);
    case PlanStep::kMultiply:
      return AnyopSizeMultiply(a, b);
    case PlanStep::kFloorDivide:
      return AnyopSizeDivide(a, b);
    case PlanStep::kCeilDivide:
      return AnyopSizeCeilDivide(a, b);
    case PlanStep::kRemainder:
      return AnyopSizeRemainder(a, b);
    case PlanStep::kMin:
      return AnyopSizeMin(a, b);
    default:
      return AnyopSizeMax(a, b);
  }
}

}  // namespace

int64_t EvaluateSteps(const std::vector<PlanStep>& steps, const Operator& op, const char* args) {
  int64_t stack[kMaxPlanStack];
  int held = 0;
  for (const PlanStep& step : steps) {
    if (step.kind < PlanStep::kAdd) {
      stack[held++] = Leaf(step, op, args);
    } else {
      --held;
      stack[held - 1] = Combine(step.kind, stack[held - 1], stack[held]);
    }
  }
  return stack[0];
}

}  // namespace anyop::ffi
