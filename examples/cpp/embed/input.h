// SPDX-License-Identifier: Apache-2.0
// Reads the files of a model, and says in one line what is wrong with them.
#ifndef EMBED_INPUT_H_
#define EMBED_INPUT_H_

#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>

namespace embed {

// What the user gave cannot be used; the text is one line that says why.
class InputError : public std::runtime_error {
 public:
  explicit InputError(const std::string& text) : std::runtime_error(OneLine(text)) {}

 private:
  // Names in a file may have any characters.
  static std::string OneLine(std::string text) {
    for (char& c : text) {
      if (static_cast<unsigned char>(c) < ' ') c = ' ';
    }
    return text;
  }
};

bool HasFile(const std::string& path);

// Opening anything but a regular file could wait for ever.
void RequireFile(const std::string& path);

nlohmann::json ParseJson(const std::string& name, const std::string& text);
nlohmann::json ReadJson(const std::string& path);

}  // namespace embed

#endif  // EMBED_INPUT_H_
