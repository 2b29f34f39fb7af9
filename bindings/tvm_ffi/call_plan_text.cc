// SPDX-License-Identifier: Apache-2.0
// Reads the text of an implementation: one flat JSON object of texts and lists of texts, which the
// generator and the package write.
#include "call_plan.h"

namespace anyop::ffi {
namespace {

class Reader {
 public:
  explicit Reader(std::string_view json) : json_(json) {}

  bool Read(CallText* text) {
    if (!Take('{')) return false;
    if (Take('}')) return true;
    do {
      std::string key;
      if (!String(&key) || !Take(':') || !Value(key, text)) return false;
    } while (Take(','));
    return Take('}');
  }

 private:
  bool Value(const std::string& key, CallText* text) {
    if (key == "needs") return List(&text->needs);
    std::string value;
    if (!String(&value)) return false;
    if (key == "call") text->call = value;
    if (key == "module") text->module = value;
    if (key == "library") text->library = value;
    return true;
  }

  bool List(std::vector<std::string>* values) {
    if (!Take('[')) return false;
    if (Take(']')) return true;
    do {
      if (!String(&values->emplace_back())) return false;
    } while (Take(','));
    return Take(']');
  }

  bool String(std::string* value) {
    if (!Take('"')) return false;
    while (at_ < json_.size() && json_[at_] != '"') {
      if (json_[at_] != '\\') {
        *value += json_[at_++];
      } else if (!Escape(value)) {
        return false;
      }
    }
    return Take('"');
  }

  bool Escape(std::string* value) {
    if (at_ + 1 >= json_.size()) return false;
    const char c = json_[at_ + 1];
    at_ += 2;
    if (c == '"' || c == '\\' || c == '/') return *value += c, true;
    if (c == 'n' || c == 't') return *value += c == 'n' ? '\n' : '\t', true;
    return c == 'u' && Unicode(value);
  }

  // Of the first 65,536 characters; text behind them is written as itself.
  bool Unicode(std::string* value) {
    unsigned code = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      const char c = at_ < json_.size() ? json_[at_] : 0;
      const bool is_digit = c >= '0' && c <= '9', is_letter = (c | 32) >= 'a' && (c | 32) <= 'f';
      if (!is_digit && !is_letter) return false;
      code = code * 16 + static_cast<unsigned>(is_digit ? c - '0' : (c | 32) - 'a' + 10);
    }
    if (code >= 0xD800 && code < 0xE000) return false;
    if (code < 0x80) {
      *value += static_cast<char>(code);
    } else if (code < 0x800) {
      *value += {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
    } else {
      *value += {static_cast<char>(0xE0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 63)),
                 static_cast<char>(0x80 | (code & 63))};
    }
    return true;
  }

  bool Take(char c) {
    while (at_ < json_.size() && (json_[at_] == ' ' || json_[at_] == '\n')) ++at_;
    if (at_ >= json_.size() || json_[at_] != c) return false;
    ++at_;
    return true;
  }

  std::string_view json_;
  size_t at_ = 0;
};

}  // namespace

bool ReadCallText(std::string_view json, CallText* text, std::string* error) {
  if (Reader(json).Read(text) && !text->call.empty()) return true;
  *error = "its text is no JSON object with a call: '" + std::string(json.substr(0, 80)) + "'";
  return false;
}

}  // namespace anyop::ffi
