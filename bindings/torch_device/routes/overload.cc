// SPDX-License-Identifier: Apache-2.0
// Reads from a schema what calls of an overload need to know.
#include "routes/overload.h"

#include <map>
#include <mutex>

namespace anyop::torch_device {
namespace {

using c10::TypeKind;

ArgumentKind KindOf(c10::TypePtr type) {
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  if (auto list = type->cast<c10::ListType>()) {
    const auto element = list->getElementType();
    if (element->kind() == TypeKind::TensorType) return ArgumentKind::kTensorList;
    const auto optional = element->cast<c10::OptionalType>();
    return optional && optional->getElementType()->kind() == TypeKind::TensorType
               ? ArgumentKind::kOptionalTensorList
               : ArgumentKind::kPlain;
  }
  switch (type->kind()) {
    case TypeKind::TensorType:
      return ArgumentKind::kTensor;
    case TypeKind::DeviceObjType:
      return ArgumentKind::kDevice;
    case TypeKind::GeneratorType:
      return ArgumentKind::kGenerator;
    default:
      return ArgumentKind::kPlain;
  }
}

int ArgumentOfResult(const c10::FunctionSchema& schema, const c10::Argument& result) {
  if (!IsWritten(result)) return -1;
  const auto& arguments = schema.arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (IsWritten(arguments[i]) &&
        arguments[i].alias_info()->beforeSet() == result.alias_info()->beforeSet())
      return static_cast<int>(i);
  }
  return -1;
}

std::mutex table_mutex;
std::map<std::string, std::unique_ptr<Overload>>& Table() {
  static auto* made = new std::map<std::string, std::unique_ptr<Overload>>();
  return *made;
}

}  // namespace

Overload::Overload(const c10::OperatorHandle& op)
    : op(op), name(c10::toString(op.operator_name())) {
  if (name.rfind("aten::", 0) == 0) name = name.substr(6);
  const auto& schema = op.schema();
  for (const auto& argument : schema.arguments()) {
    arguments.push_back({KindOf(argument.type()), IsWritten(argument)});
    takes_generator |= arguments.back().kind == ArgumentKind::kGenerator;
  }
  for (const auto& result : schema.returns())
    written_results.push_back(ArgumentOfResult(schema, result));
}

Overload* MakeOverload(const c10::OperatorHandle& op) {
  const std::lock_guard lock(table_mutex);
  auto made = std::make_unique<Overload>(op);
  auto& place = Table()[made->name];
  if (!place) place = std::move(made);
  return place.get();
}

Overload* FindOverload(const std::string& name) {
  const std::lock_guard lock(table_mutex);
  const auto found = Table().find(name);
  return found == Table().end() ? nullptr : found->second.get();
}

std::vector<Overload*> AllOverloads() {
  const std::lock_guard lock(table_mutex);
  std::vector<Overload*> all;
  for (const auto& [name, overload] : Table()) all.push_back(overload.get());
  return all;
}

}  // namespace anyop::torch_device
