// SPDX-License-Identifier: Apache-2.0
// Schemas are written in ATen's grammar already: what is done here is the name, the mask and the
// places of results.
#include "signature.h"

#include <cstring>

namespace anyop::torch {
namespace {

// What stands between the parentheses of the arguments, and what stands behind the arrow.
void Split(const std::string& schema, std::string* arguments, std::string* results) {
  const size_t open = schema.find('(');
  const size_t arrow = schema.rfind("->");
  const size_t close = schema.rfind(')', arrow);
  *arguments = schema.substr(open + 1, close - open - 1);
  *results = schema.substr(schema.find_first_not_of(' ', arrow + 2));
}

bool HasKeywordOnly(const Operator& op) {
  for (uint32_t i = 0; i < op.num_inputs; ++i) {
    if (op.params[i].Is(kAnyopKeywordOnly)) return true;
  }
  return false;
}

// torch's call by name takes the type of each result from the result opposite to it (to 2.13): of
// an overload that is called so all results are optional, or none.
std::string AllOptional(const Operator& op, const std::string& results) {
  std::string text = results;
  for (size_t at = 0; HasMask(op) && (at = text.find("Tensor", at)) != std::string::npos;) {
    at += 6;
    if (at == text.size() || text[at] != '?') text.insert(at, "?");
  }
  return text;
}

}  // namespace

std::string TorchName(const Operator& op) {
  return op.table->name_space + std::string("::") + op.table->name;
}

std::string Kinds(const Operator& op, Form form) {
  std::string kinds;
  for (uint32_t i = 0; i < (form.destination ? op.params.size() : op.num_inputs); ++i) {
    const Param& p = op.params[i];
    if (p.IsList()) return "";
    const char kind = p.IsTensor()              ? kAnyopTorchTensor
                      : p.kind == kAnyopStr     ? kAnyopTorchString
                      : p.kind == kAnyopFloat   ? kAnyopTorchFloat
                      : p.kind == kAnyopBoolean ? kAnyopTorchBool
                                                : kAnyopTorchInt;
    kinds += p.Is(kAnyopOptional) ? static_cast<char>(kind - 'a' + 'A') : kind;
  }
  if (!form.destination && HasMask(op)) kinds += char{kAnyopTorchInt};
  if (TakesScope(op)) kinds += 'S';
  return kinds;
}

bool HasMask(const Operator& op) {
  for (uint32_t o = 0; o < op.num_outputs; ++o) {
    if (op.params[op.num_inputs + o].Is(kAnyopOptional)) return true;
  }
  return false;
}

bool TakesScope(const Operator& op) {
  if (runtime.shim && !runtime.shim->string_size) return false;
  for (const Param& p : op.params) {
    if (std::strcmp(p.name, "use") == 0) return false;
  }
  return true;
}

bool NeedsListsOrText(const Operator& op) {
  for (const Param& p : op.params) {
    if (p.IsList() || p.kind == kAnyopStr) return true;
  }
  return false;
}

std::string Signature(const Operator& op, Form form) {
  std::string arguments, results;
  Split(op.table->schema, &arguments, &results);
  const char* comma = op.num_inputs ? ", " : "";
  // A mask behind keyword-only arguments is one of them.
  if (!form.destination && HasMask(op)) {
    arguments += std::string(comma) + "int results=-1";
    comma = ", ";
  }
  const bool takes_scope = TakesScope(op);
  if (!HasKeywordOnly(op) && (form.destination || takes_scope))
    arguments += std::string(comma) + "*";
  for (uint32_t o = 0; form.destination && o < op.num_outputs; ++o) {
    arguments += ", Tensor(out" + std::to_string(o) + "!) ";
    arguments += op.params[op.num_inputs + o].name;
  }
  if (takes_scope) arguments += ", str? use=None";
  if (!form.destination) {
    const char* overload = form.records ? ".autograd(" : "(";
    const std::string given = form.records ? AllOptional(op, results) : results;
    return op.table->name + (overload + arguments) + ") -> " + given;
  }
  return op.table->name + ((form.records ? ".out_autograd(" : ".out(") + arguments) + ") -> ()";
}

}  // namespace anyop::torch
