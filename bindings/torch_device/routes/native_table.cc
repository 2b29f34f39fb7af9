// SPDX-License-Identifier: Apache-2.0
// Reads what operators stand for, as Python tells it, and finds the overloads that it fits.
#include "routes/native_table.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>

#include "routes/overload.h"

namespace anyop::torch_device {
namespace {

int ParameterOf(const AnyopOp& table, const std::string& name) {
  for (uint32_t p = 0; p < table.num_inputs + table.num_outputs; ++p) {
    const auto* record = reinterpret_cast<const AnyopParam*>(
        reinterpret_cast<const char*>(table.params) + size_t{p} * table.param_size);
    if (name == record->name) return static_cast<int>(p);
  }
  TORCH_CHECK_VALUE(false, table.name, " has no parameter '", name, "'");
}

c10::ArrayRef<c10::IValue> PartsOf(const c10::IValue& tuple) {
  return tuple.toTupleRef().elements().asArrayRef();
}

Slot::Form FormOf(const std::string& name) {
  static const std::map<std::string, Slot::Form> forms = {
      {"any", Slot::kAny},     {"parameter", Slot::kParameter}, {"transposed", Slot::kTransposed},
      {"ends", Slot::kEnds},   {"sizes", Slot::kSizes},         {"dtype", Slot::kDtype},
      {"value", Slot::kValue},
  };
  const auto found = forms.find(name);
  TORCH_CHECK_VALUE(found != forms.end(), "unknown form '", name, "'");
  return found->second;
}

// ("any",), ("parameter", "x"), ("parameter", "x", ("T", "K")), ("sizes", (("x", 1),)), ("value",
// 3)
Slot ReadSlot(const AnyopOp& table, const c10::IValue& form) {
  const auto parts = PartsOf(form);
  Slot slot;
  slot.form = FormOf(parts.at(0).toStringRef());
  if (slot.form == Slot::kAny) return slot;
  const c10::IValue& of = parts.at(1);
  if (slot.form == Slot::kValue) {
    slot.value = of;
  } else if (slot.form == Slot::kSizes) {
    for (const c10::IValue& size : PartsOf(of)) {
      const auto place = PartsOf(size);
      slot.sizes.emplace_back(ParameterOf(table, place.at(0).toStringRef()), place.at(1).toInt());
    }
  } else {
    slot.parameter = ParameterOf(table, of.toStringRef());
    if (parts.size() > 2)
      for (const c10::IValue& letter : PartsOf(parts[2]))
        slot.letters.push_back(letter.toStringRef());
  }
  return slot;
}

// What a schema has beside the arguments that are results.
struct Sorted {
  std::vector<const c10::Argument*> taken, written;
};

Sorted Sort(const c10::FunctionSchema& schema) {
  Sorted sorted;
  for (const c10::Argument& argument : schema.arguments()) {
    const bool is_out = argument.is_out();
    (is_out ? sorted.written : sorted.taken).push_back(&argument);
  }
  return sorted;
}

bool TakesTheSame(const Sorted& a, const Sorted& b) {
  const auto same = [](const c10::Argument* x, const c10::Argument* y) {
    return x->name() == y->name() && *x->real_type() == *y->real_type();
  };
  return a.taken.size() == b.taken.size() &&
         std::equal(a.taken.begin(), a.taken.end(), b.taken.begin(), same);
}

// "add_.Tensor" for add.Tensor, "add.out" for both.
bool IsFormOf(const c10::FunctionSchema& schema, const c10::FunctionSchema& plain) {
  if (schema.operator_name() == plain.operator_name()) return true;
  const Sorted given = Sort(schema), expected = Sort(plain);
  if (!TakesTheSame(given, expected)) return false;
  if (schema.name() == plain.name() + "_")
    return schema.overload_name() == plain.overload_name() && plain.returns().size() == 1 &&
           given.written.empty() && IsWritten(schema.arguments().at(0));
  return schema.name() == plain.name() && given.written.size() == plain.returns().size();
}

}  // namespace

NativeText ReadNative(const c10::IValue& said) {
  const auto parts = PartsOf(said);
  NativeText text;
  text.overload = parts.at(0).toStringRef();
  text.op = AnyopFindOperator(parts.at(1).toStringRef().c_str());
  TORCH_CHECK_VALUE(text.op, AnyopLastError());
  text.table = AnyopOperatorTable(text.op);
  if (!parts.at(2).isNone()) text.device = c10::Device(parts[2].toStringRef()).type();
  for (const c10::IValue& given : PartsOf(parts.at(3))) {
    Slot slot;
    slot.form = Slot::kValue;
    slot.parameter = ParameterOf(*text.table, PartsOf(given).at(0).toStringRef());
    slot.value = PartsOf(given).at(1);
    text.given.push_back(std::move(slot));
  }
  for (const c10::IValue& form : PartsOf(parts.at(4)))
    text.positional.push_back(ReadSlot(*text.table, form));
  for (const c10::IValue& named : PartsOf(parts.at(5)))
    text.named[PartsOf(named).at(0).toStringRef()] = ReadSlot(*text.table, PartsOf(named).at(1));
  return text;
}

bool BindNative(const NativeText& text, const c10::FunctionSchema& schema, NativeKernel* kernel) {
  const auto dot = text.overload.find('.');
  const c10::OperatorName name("aten::" + text.overload.substr(0, dot),
                               dot == std::string::npos ? "" : text.overload.substr(dot + 1));
  const auto plain = c10::Dispatcher::singleton().findSchema(name);
  if (!plain || !IsFormOf(schema, plain->schema())) return false;
  const uint32_t results = text.table->num_outputs;
  if (schema.returns().size() != results && !schema.returns().empty()) return false;
  kernel->text = &text;
  size_t positional = 0, named = 0;
  int result = 0;
  for (const c10::Argument& argument : schema.arguments()) {
    Slot slot;
    const auto found = text.named.find(argument.name());
    if (argument.is_out()) {
      slot.form = Slot::kResult;
      slot.parameter = result++;
    } else if (found != text.named.end()) {
      slot = found->second;
      ++named;
    } else if (positional < text.positional.size() && !argument.kwarg_only()) {
      slot = text.positional[positional++];
    } else if (argument.default_value()) {
      slot.form = Slot::kValue;
      slot.value = *argument.default_value();
    } else {
      return false;
    }
    kernel->slots.push_back(std::move(slot));
  }
  return positional == text.positional.size() && named == text.named.size();
}

}  // namespace anyop::torch_device
