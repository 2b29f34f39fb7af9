// SPDX-License-Identifier: Apache-2.0
// A kernel's arguments as a plan takes them.
#include "plan.h"

#include <array>
#include <cstring>

#include "call/call.h"
#include "op.h"
#include "runtime.h"
#include "tensors/dtype.h"

namespace anyop::aten {

struct Plan {
  const Operator* op;
  std::string name;  // of the kernel
  void* handle;      // the glue's
  std::array<int32_t, kAnyopNumDtypes> codes;
};

namespace {

constexpr int32_t kCuda = 2;  // DLDeviceType

// What a parameter is to the glue; false: it is none of these.
bool TypeOf(const anyop::Param& p, AnyopAtenType* type) {
  const bool writes = p.Is(kAnyopOutput);
  *type = {0, static_cast<uint8_t>(kAnyopAtenOptional | (writes ? kAnyopAtenWrites : 0)), -1};
  switch (p.kind) {
    case kAnyopTensor:
      type->kind = kAnyopAtenKindTensor;
      break;
    case kAnyopInt:
      type->kind = kAnyopAtenKindInt;
      break;
    case kAnyopFloat:
      type->kind = kAnyopAtenKindFloat;
      break;
    case kAnyopBoolean:
      type->kind = kAnyopAtenKindBool;
      break;
    case kAnyopStr:
      type->kind = kAnyopAtenKindStr;
      break;
    case kAnyopScalarType:
      type->kind = kAnyopAtenKindDtype;
      break;
    default:
      return false;
  }
  return !p.IsList();
}

// Operators that write are not called but as the results' own: what they read may be what they
// write, and the way through Python sees to that.
bool FindCall(const std::string& name, bool writes, AnyopAtenPlanCall* call) {
  const size_t dot = name.find('.');
  const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
  const Name* found = FindName(name.substr(0, dot));
  if (!found) return false;
  for (const Op* op : found->overloads) {
    if (op->overload != overload) continue;
    if (!op->refusal.empty() || !op->hidden_writes.empty() || op->needs_alignment) return false;
    for (const AnyopAtenType& type : op->types)
      if (type.flags & kAnyopAtenWrites && !writes) return false;
    *call = {runtime.glue->find(op->name.c_str(), op->overload.c_str()), op->types.data(),
             static_cast<int32_t>(op->types.size()), static_cast<int32_t>(op->results.size())};
    return call->op;
  }
  return false;
}

// The value of a parameter; false where torch has none such.
bool Fill(const Plan& plan, const anyop::Param& p, const char* args, AnyopAtenValue* value,
          AnyopAtenMemory* memory) {
  const char* field = args + p.offset;
  *value = {};
  if (p.IsTensor()) {
    const auto* tensor = *reinterpret_cast<const AnyopTensor* const*>(field);
    if (!tensor || tensor->ndim < 0) return true;
    for (int32_t d = 0; d < tensor->ndim; ++d)
      if (tensor->strides[d] < 0) return false;
    *memory = {*tensor, 0, 0, nullptr, nullptr, nullptr};
    value->tag = kAnyopAtenMemoryOf;
    value->as.memory = memory;
    return true;
  }
  if (p.kind == kAnyopStr) {
    const auto& text = *reinterpret_cast<const AnyopString*>(field);
    if (!text.data) return true;
    value->tag = kAnyopAtenStr;
    value->as.s = text.data;
    value->more.count = text.count;
    return true;
  }
  const auto& number = *reinterpret_cast<const AnyopOptionalInt*>(field);
  if (p.Is(kAnyopOptional) && !number.has) return true;
  if (p.kind == kAnyopFloat) {
    value->tag = kAnyopAtenFloat;
    std::memcpy(&value->as.f, field, sizeof value->as.f);
    return true;
  }
  value->tag = p.kind == kAnyopBoolean ? kAnyopAtenBool : kAnyopAtenInt;
  value->as.i = number.value;
  if (p.kind != kAnyopScalarType) return true;
  value->as.i = plan.codes[static_cast<size_t>(number.value)];
  return value->as.i >= 0;
}

// Whose memory is a tensor of torch's: an input as it was given, or a result that torch has made.
void FindTorchsOwn(const Plan& plan, Frame* frame, const char* args, const AnyopAtenValue* values,
                   AnyopAtenMemory* memory) {
  const Operator& op = *plan.op;
  for (uint32_t i = 0; frame->torch_input && i < op.num_inputs; ++i) {
    if (values[i].tag != kAnyopAtenMemoryOf) continue;
    const auto* given = *reinterpret_cast<const AnyopTensor* const*>(args + op.params[i].offset);
    if (given == &frame->tensors[i]) memory[i].owner = frame->torch_input(frame, i);
  }
  for (uint32_t o = 0; frame->torch_result && o < op.num_outputs; ++o) {
    const size_t i = op.num_inputs + o;
    const bool is_made = values[i].tag == kAnyopAtenMemoryOf && !(frame->given >> i & 1);
    if (is_made) memory[i].owner = frame->torch_result(frame, o);
  }
}

// What was made is the caller's, whatever became of the call.
void TakeMade(Frame* frame, void* const* made) {
  for (; frame->deferred; frame->deferred &= frame->deferred - 1) {
    const auto o = static_cast<uint32_t>(__builtin_ctzll(frame->deferred));
    if (made[o]) frame->take_result(frame, o, made[o]);
  }
}

}  // namespace

Plan* MakePlan(const Operator& op, const PlanText& text) {
  if (!runtime.glue) return nullptr;
  AnyopAtenType types[kMaxParams];
  for (size_t i = 0; i < op.params.size(); ++i)
    if (!TypeOf(op.params[i], &types[i])) return nullptr;
  std::vector<AnyopAtenPlanCall> calls(text.calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    const bool is_into = text.into >= 0 && i + 1 == calls.size();  // the last one
    if (!FindCall(text.calls[i], is_into, &calls[i])) return nullptr;
  }
  const auto count = [](const auto& all) { return static_cast<int32_t>(all.size()); };
  const AnyopAtenPlan spec = {text.steps.data(),
                              text.constants.data(),
                              calls.data(),
                              types,
                              count(text.steps),
                              count(text.constants),
                              count(calls),
                              static_cast<int32_t>(op.num_inputs),
                              static_cast<int32_t>(op.num_outputs),
                              text.num_values,
                              text.into,
                              0};
  void* handle = runtime.glue->make_plan(&spec);
  if (!handle) return nullptr;
  auto* plan = new Plan{&op, text.name, handle, {}};
  for (int i = 0; i < kAnyopNumDtypes; ++i)
    plan->codes[static_cast<size_t>(i)] = CodeOf(kAnyopAtenKindDtype, DtypeName(i));
  return plan;
}

void FreePlan(Plan* plan) {
  runtime.glue->free_plan(plan->handle);
  delete plan;
}

int32_t RunPlan(const Plan& plan, const void* args, AnyopCall* call) {
  AnyopAtenValue values[kMaxParams];
  AnyopAtenMemory memory[kMaxParams];
  const std::vector<anyop::Param>& params = plan.op->params;
  for (size_t i = 0; i < params.size(); ++i)
    if (!Fill(plan, params[i], static_cast<const char*>(args), &values[i], &memory[i]))
      return kAnyopPending;
  Frame* const frame = FrameOf(*call);
  FindTorchsOwn(plan, frame, static_cast<const char*>(args), values, memory);
  AnyopAtenOptions options = {sizeof options, 0, call->stream, call->device_id, 0};
  if (call->device_type == kCuda) options.flags = kAnyopAtenHasStream;
  char error[512] = "";
  int32_t kept = -1;
  void* made[kMaxParams] = {};
  const int32_t status = runtime.glue->run_plan(plan.handle, values, frame->deferred, made,
                                                &options, &kept, error, sizeof error);
  if (status != kAnyopPending) TakeMade(frame, made);
  if (__builtin_expect(kept >= 0, 0)) {
    const std::string text = plan.name + " keeps " + params[static_cast<size_t>(kept)].name +
                             ", whose memory is there for it only during the call; copy it";
    return call->fail(call, kAnyopValueError, text.c_str());
  }
  if (status == kAnyopOk || status == kAnyopPending) return status;
  return call->fail(call, status < kAnyopPending ? status : kAnyopInternalError,
                    (plan.name + ": " + error).c_str());
}

}  // namespace anyop::aten
