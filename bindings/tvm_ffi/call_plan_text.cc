// SPDX-License-Identifier: Apache-2.0
// Reads the text of an implementation: one flat JSON object of texts and lists of texts, which the
// generator and the package write.
#include <nlohmann/json.hpp>

#include "call_plan.h"

namespace anyop::ffi {
namespace {

bool Read(std::string_view json, CallText* text) {
  try {
    const auto read = nlohmann::json::parse(json);
    text->call = read.value("call", "");
    text->module = read.value("module", "");
    text->library = read.value("library", "");
    text->needs = read.value("needs", std::vector<std::string>());
    return !text->call.empty();
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

}  // namespace

bool ReadCallText(std::string_view json, CallText* text, std::string* error) {
  if (Read(json, text)) return true;
  *error = "its text is no JSON object with a call: '" + std::string(json.substr(0, 80)) + "'";
  return false;
}

}  // namespace anyop::ffi
