// SPDX-License-Identifier: Apache-2.0
// Runs an overload by its boxed arguments on torch's kernel of the inner device.
#include "kernels/boxed.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/SmallVector.h>

#include "device/device_generator.h"
#include "kernels/wrappers.h"

namespace anyop::torch_device {
namespace {

using c10::IValue;

c10::List<at::Tensor> InList(Call* call, const IValue& value, bool written) {
  const auto list = value.toTensorList();
  c10::List<at::Tensor> wrapped;
  wrapped.reserve(list.size());
  for (const at::Tensor& tensor : list) wrapped.push_back(call->In(tensor, written));
  return wrapped;
}

c10::List<std::optional<at::Tensor>> InOptionalList(Call* call, const IValue& value) {
  const auto list = value.toOptionalTensorList();
  c10::List<std::optional<at::Tensor>> wrapped;
  wrapped.reserve(list.size());
  for (const std::optional<at::Tensor>& tensor : list)
    wrapped.push_back(tensor ? std::optional(call->InIndex(*tensor)) : std::nullopt);
  return wrapped;
}

// The argument as the kernel gets it. Generators wait for the device to be known.
void WrapArgument(Call* call, const ArgumentFacts& facts, IValue* value) {
  switch (facts.kind) {
    case ArgumentKind::kTensor:
      if (value->isTensor()) *value = call->In(value->toTensor(), facts.written);
      break;
    case ArgumentKind::kTensorList:
      if (value->isTensorList()) *value = InList(call, *value, facts.written);
      break;
    case ArgumentKind::kOptionalTensorList:
      if (value->isOptionalTensorList())
        *value = InOptionalList(call, *value);
      else if (value->isTensorList())
        *value = InList(call, *value, facts.written);
      break;
    case ArgumentKind::kDevice:
      if (value->isDevice()) *value = call->InDevice(value->toDevice());
      break;
    default:
      break;
  }
}

c10::List<at::Tensor> OutList(Call* call, const IValue& value) {
  const auto list = value.toTensorList();
  c10::List<at::Tensor> taken;
  taken.reserve(list.size());
  for (const at::Tensor& tensor : list) taken.push_back(call->Out(tensor));
  return taken;
}

}  // namespace

void RunBoxed(const Overload& overload, const c10::OperatorHandle& callee,
              torch::jit::Stack* stack) {
  const auto& arguments = overload.arguments;
  const size_t base = stack->size() - arguments.size();
  // The caller's values: they must outlive the call, and some are its results.
  c10::SmallVector<IValue, 8> given;
  given.reserve(arguments.size());
  Call call(overload);
  for (size_t i = 0; i < arguments.size(); ++i) {
    IValue& value = (*stack)[base + i];
    if (arguments[i].kind == ArgumentKind::kPlain) {
      given.emplace_back();
      continue;
    }
    given.push_back(value);
    WrapArgument(&call, arguments[i], &value);
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].kind != ArgumentKind::kGenerator) continue;
    IValue& value = (*stack)[base + i];
    value = InnerGenerator(value.toOptional<at::Generator>(), call.Index());
  }
  call.Ready();
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    callee.redispatchBoxed(platform->inner_keys, stack);
  }
  call.Finish();
  const auto& results = overload.written_results;
  const size_t first = stack->size() - results.size();
  for (size_t i = 0; i < results.size(); ++i) {
    IValue& value = (*stack)[first + i];
    if (results[i] >= 0)
      value = given[results[i]];
    else if (value.isTensor())
      value = call.Out(std::move(value).toTensor());
    else if (value.isTensorList())
      value = OutList(&call, value);
  }
}

}  // namespace anyop::torch_device
