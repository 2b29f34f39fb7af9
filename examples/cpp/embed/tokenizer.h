// SPDX-License-Identifier: Apache-2.0
// From text to token numbers: the WordPiece model of a tokenizer.json.
#ifndef EMBED_TOKENIZER_H_
#define EMBED_TOKENIZER_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text.h"

namespace embed {

struct Tokens {
  std::vector<int64_t> ids;
  size_t count;  // before the model's limit cut them
};

class Tokenizer {
 public:
  // limit: tokens of a text, in place of what the file says; vocabulary: numbers of tokens are less
  // than this. Throws InputError naming what is missing or not supported.
  Tokenizer(const std::string& path, int64_t limit, int64_t vocabulary);

  // Throws InputError where the text is not UTF-8.
  Tokens Encode(std::string_view text) const;

 private:
  void ReadModel(const nlohmann::json& file);
  void ReadAdded(const nlohmann::json& file);
  void ReadNormalizer(const nlohmann::json& file);
  void ReadTemplate(const nlohmann::json& file);
  int64_t Number(const nlohmann::json& value, const std::string& name) const;
  // Bytes of the longest added token at the beginning of the text, and its number; 0 for none.
  size_t AddedAt(std::string_view text, int64_t* id) const;
  void AppendText(std::string_view text, std::vector<int64_t>* ids) const;
  void AppendWord(const std::string& word, std::vector<int64_t>* ids) const;

  std::string path_;
  size_t limit_;
  int64_t vocabulary_;
  Normalizer normalizer_;
  std::unordered_map<std::string, int64_t> pieces_;
  std::unordered_map<std::string, int64_t> added_;  // such as "[SEP]", found in the text as it is
  std::string continuing_prefix_;
  int64_t unknown_ = 0;
  int64_t longest_word_ = 0;             // characters
  std::vector<int64_t> before_, after_;  // numbers of tokens around every text
};

}  // namespace embed

#endif  // EMBED_TOKENIZER_H_
