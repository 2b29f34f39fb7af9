// SPDX-License-Identifier: Apache-2.0
// Writes JSON.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace anyop {

class Json {
 public:
  Json& Open(char bracket) {
    Comma();
    text_ += bracket;
    return *this;
  }
  Json& Close(char bracket) {
    text_ += bracket;
    return *this;
  }
  Json& Key(std::string_view name) {
    Text(name);
    text_ += ':';
    return *this;
  }
  Json& Boolean(bool value) { return Raw(value ? "true" : "false"); }
  Json& Number(int64_t value) { return Raw(std::to_string(value)); }
  Json& Raw(std::string_view value) {
    Comma();
    text_ += value;
    return *this;
  }
  Json& Text(std::string_view value) {
    Comma();
    text_ += '"';
    for (const char c : value) {
      if (c == '"' || c == '\\') text_ += '\\';
      if (static_cast<unsigned char>(c) >= 32) {
        text_ += c;
        continue;
      }
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned char>(c));
      text_ += code;
    }
    text_ += '"';
    return *this;
  }
  const std::string& text() const { return text_; }

 private:
  // Between what stands side by side; a value follows its key's colon.
  void Comma() {
    if (text_.empty()) return;
    const char last = text_.back();
    if (last != '{' && last != '[' && last != ':') text_ += ',';
  }

  std::string text_;
};

}  // namespace anyop
