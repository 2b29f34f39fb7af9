// SPDX-License-Identifier: Apache-2.0
// Reads the texts by which operators stand for overloads, and finds the overloads that they fit.
#include "routes/native_table.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <sstream>

#include "routes/overload.h"

namespace anyop::torch_device {
namespace {

std::vector<std::string> Split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  return parts;
}

int ParameterOf(const AnyopOp& table, const std::string& name) {
  for (uint32_t p = 0; p < table.num_inputs + table.num_outputs; ++p) {
    const auto* record = reinterpret_cast<const AnyopParam*>(
        reinterpret_cast<const char*>(table.params) + size_t{p} * table.param_size);
    if (name == record->name) return static_cast<int>(p);
  }
  TORCH_CHECK_VALUE(false, table.name, " has no parameter '", name, "'");
}

// "x[T,K]", "x"
void ReadParameter(const AnyopOp& table, const std::string& text, Slot* slot) {
  const auto bracket = text.find('[');
  slot->parameter = ParameterOf(table, text.substr(0, bracket));
  if (bracket != text.npos)
    slot->letters = Split(text.substr(bracket + 1, text.size() - bracket - 2), ',');
}

// "i-1", "f0.5", "b1", "stanh", "n"
c10::IValue ReadValue(const std::string& text) {
  const std::string rest = text.substr(1);
  switch (text.at(0)) {
    case 'i':
      return static_cast<int64_t>(std::stoll(rest));
    case 'f':
      return std::stod(rest);
    case 'b':
      return rest == "1";
    case 's':
      return rest;
    case 'n':
      return {};
    default:
      TORCH_CHECK_VALUE(false, "unknown value '", text, "'");
  }
}

Slot ReadSlot(const AnyopOp& table, const std::string& text) {
  Slot slot;
  if (text == "_") return slot;
  TORCH_CHECK_VALUE(text.size() > 2 && text[1] == ':', "unknown form '", text, "'");
  const std::string rest = text.substr(2);
  switch (text[0]) {
    case 'p':
      slot.form = Slot::kParameter;
      break;
    case 't':
      slot.form = Slot::kTransposed;
      break;
    case 'e':
      slot.form = Slot::kEnds;
      break;
    case 'd':
      slot.form = Slot::kDtype;
      break;
    case 's':
      slot.form = Slot::kSizes;
      break;
    case 'v':
      slot.form = Slot::kValue;
      break;
    default:
      TORCH_CHECK_VALUE(false, "unknown form '", text, "'");
  }
  if (slot.form == Slot::kValue) {
    slot.value = ReadValue(rest);
  } else if (slot.form == Slot::kSizes) {
    for (const std::string& size : Split(rest, ',')) {
      const auto at = size.find('@');
      slot.sizes.emplace_back(ParameterOf(table, size.substr(0, at)),
                              std::stoi(size.substr(at + 1)));
    }
  } else {
    ReadParameter(table, rest, &slot);
  }
  return slot;
}

// "@cpu"
c10::DeviceType ReadDevice(const std::string& text) {
  if (text == "@cpu") return c10::kCPU;
  if (text == "@cuda") return c10::kCUDA;
  if (text == "@hip") return c10::kHIP;
  TORCH_CHECK_VALUE(false, "unknown device '", text, "'");
}

// "+activation=v:srelu"
Slot ReadGiven(const AnyopOp& table, const std::string& text) {
  const auto equals = text.find('=');
  Slot slot = ReadSlot(table, text.substr(equals + 1));
  slot.parameter = ParameterOf(table, text.substr(1, equals - 1));
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

NativeText ParseNative(const std::string& line) {
  const std::vector<std::string> parts = Split(line, '\t');
  TORCH_CHECK_VALUE(parts.size() >= 2, "unknown line '", line, "'");
  NativeText text;
  text.op = AnyopFindOperator(parts[1].c_str());
  text.overload = parts[0];
  TORCH_CHECK_VALUE(text.op, AnyopLastError());
  text.table = AnyopOperatorTable(text.op);
  for (size_t i = 2; i < parts.size(); ++i) {
    if (parts[i][0] == '@') {
      text.device = ReadDevice(parts[i]);
      continue;
    }
    if (parts[i][0] == '+') {
      text.given.push_back(ReadGiven(*text.table, parts[i]));
      continue;
    }
    const auto equals = parts[i].find('='), colon = parts[i].find(':');
    if (equals < colon)
      text.named[parts[i].substr(0, equals)] = ReadSlot(*text.table, parts[i].substr(equals + 1));
    else
      text.positional.push_back(ReadSlot(*text.table, parts[i]));
  }
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
