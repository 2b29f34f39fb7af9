// SPDX-License-Identifier: Apache-2.0
// Reads the files of a model, and says in one line what is wrong with them.
#include "input.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

namespace embed {

bool HasFile(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

void RequireFile(const std::string& path) {
  if (!HasFile(path)) throw InputError(path + " is no file");
}

nlohmann::json ParseJson(const std::string& name, const std::string& text) {
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& error) {  // its text quotes the file, as it may be
    throw InputError(name + " is not JSON (error " + std::to_string(error.id) + " of the parser)");
  }
}

nlohmann::json ReadJson(const std::string& path) {
  RequireFile(path);
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) throw InputError(path + " cannot be read");
  return ParseJson(path, text);
}

}  // namespace embed
