// SPDX-License-Identifier: Apache-2.0
// From text to token numbers: the WordPiece model of a tokenizer.json.
#include "tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "input.h"

namespace embed {
namespace {

using nlohmann::json;

// One part of the file, which must be of the type that this program knows.
json Part(const std::string& path, const json& file, const char* key, const char* type) {
  const json part = file.is_object() ? file.value(key, json()) : json();
  if (part.is_object() && part.value("type", json()) == type) return part;
  throw InputError(path + ": its " + key + " is not supported, only " + type);
}

bool Flag(const json& part, const char* key, bool absent) {
  const json flag = part.value(key, json());
  return flag.is_boolean() ? flag.get<bool>() : absent;
}

std::string Word(const json& part, const char* key, const char* absent) {
  const json word = part.value(key, json());
  return word.is_string() ? word.get<std::string>() : absent;
}

}  // namespace

Tokenizer::Tokenizer(const std::string& path, int64_t limit, int64_t vocabulary)
    : path_(path), limit_(static_cast<size_t>(limit)), vocabulary_(vocabulary) {
  const json file = ReadJson(path);
  ReadModel(file);
  ReadAdded(file);
  ReadNormalizer(file);
  Part(path_, file, "pre_tokenizer", "BertPreTokenizer");
  ReadTemplate(file);
  if (before_.size() + after_.size() >= limit_) {
    throw InputError("the model's limit of " + std::to_string(limit) +
                     " tokens leaves no room for text");
  }
}

int64_t Tokenizer::Number(const json& value, const std::string& name) const {
  if (value.is_number_unsigned() && value < vocabulary_) return value;
  throw InputError(path_ + ": the number of " + name + " is not below config.json's vocab_size " +
                   std::to_string(vocabulary_));
}

void Tokenizer::ReadModel(const json& file) {
  const json model = Part(path_, file, "model", "WordPiece");
  const json words = model.value("vocab", json());
  if (!words.is_object()) throw InputError(path_ + ": it has no vocabulary");
  for (const auto& [word, id] : words.items()) pieces_[word] = Number(id, word);
  const auto unknown = pieces_.find(Word(model, "unk_token", "[UNK]"));
  if (unknown == pieces_.end())
    throw InputError(path_ + ": its vocabulary lacks the unknown token");
  unknown_ = unknown->second;
  continuing_prefix_ = Word(model, "continuing_subword_prefix", "##");
  const json longest = model.value("max_input_chars_per_word", json());
  longest_word_ =
      longest.is_number_unsigned() && longest < INT32_MAX ? longest.get<int64_t>() : 100;
}

void Tokenizer::ReadAdded(const json& file) {
  const json added = file.value("added_tokens", json::array());
  for (const json& token : added) {
    const json content = token.is_object() ? token.value("content", json()) : json();
    if (!content.is_string()) throw InputError(path_ + ": an added token has no content");
    for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized"}) {
      if (!Flag(token, flag, false)) continue;
      throw InputError(path_ + ": added tokens that are " + flag + " are not supported");
    }
    const std::string text = content;
    if (!text.empty()) added_[text] = Number(token.value("id", json()), text);
  }
}

void Tokenizer::ReadNormalizer(const json& file) {
  const json part = Part(path_, file, "normalizer", "BertNormalizer");
  normalizer_.clean_text = Flag(part, "clean_text", true);
  normalizer_.handle_chinese_chars = Flag(part, "handle_chinese_chars", true);
  normalizer_.lowercase = Flag(part, "lowercase", true);
  normalizer_.strip_accents = Flag(part, "strip_accents", normalizer_.lowercase);
}

// What is put around one text: special tokens, the sequence A, special tokens.
void Tokenizer::ReadTemplate(const json& file) {
  const json part = Part(path_, file, "post_processor", "TemplateProcessing");
  std::vector<int64_t>* to = &before_;
  for (const json& piece : part.value("single", json::array())) {
    if (!piece.is_object()) throw InputError(path_ + ": its template is not supported");
    if (piece.contains("Sequence")) {
      to = &after_;
      continue;
    }
    const json special = piece.value("SpecialToken", json::object());
    const std::string name = special.is_object() ? Word(special, "id", "") : "";
    const auto found = added_.find(name);
    if (found == added_.end()) throw InputError(path_ + ": its template is not supported");
    to->push_back(found->second);
  }
  if (to == &before_ || before_.size() + after_.size() == 0) {
    throw InputError(path_ + ": it adds no special tokens, a BERT needs [CLS] and [SEP]");
  }
}

Tokens Tokenizer::Encode(std::string_view text) const {
  RequireUtf8(text);
  std::vector<int64_t> ids;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    int64_t id = 0;
    const size_t bytes = AddedAt(text.substr(i), &id);
    if (bytes == 0) {
      i += CharacterBytes(text[i]);
      continue;
    }
    AppendText(text.substr(begin, i - begin), &ids);
    ids.push_back(id);
    begin = i += bytes;
  }
  AppendText(text.substr(begin), &ids);

  const size_t special = before_.size() + after_.size(), count = ids.size() + special;
  ids.resize(std::min(ids.size(), limit_ - special));
  ids.insert(ids.begin(), before_.begin(), before_.end());
  ids.insert(ids.end(), after_.begin(), after_.end());
  return {std::move(ids), count};
}

size_t Tokenizer::AddedAt(std::string_view text, int64_t* id) const {
  size_t longest = 0;
  for (const auto& [token, number] : added_) {
    if (token.size() <= longest || text.substr(0, token.size()) != token) continue;
    longest = token.size();
    *id = number;
  }
  return longest;
}

void Tokenizer::AppendText(std::string_view text, std::vector<int64_t>* ids) const {
  for (const std::string& word : SplitWords(normalizer_, text)) AppendWord(word, ids);
}

// The longest known piece, and so on; a word with a part that is not known is unknown as a whole.
void Tokenizer::AppendWord(const std::string& word, std::vector<int64_t>* ids) const {
  std::vector<size_t> ends;  // of its characters
  for (size_t i = 0; i < word.size();) ends.push_back(i += CharacterBytes(word[i]));
  std::vector<int64_t> found;
  size_t begin = 0, done = 0;  // bytes and characters
  bool known = static_cast<int64_t>(ends.size()) <= longest_word_;
  while (known && begin < word.size()) {
    size_t last = ends.size();
    auto piece = pieces_.end();
    for (; last > done && piece == pieces_.end(); --last) {
      const std::string part = word.substr(begin, ends[last - 1] - begin);
      piece = pieces_.find(begin > 0 ? continuing_prefix_ + part : part);
    }
    known = piece != pieces_.end();
    if (!known) break;
    found.push_back(piece->second);
    done = last + 1;
    begin = ends[last];
  }
  if (!known) found = {unknown_};
  ids->insert(ids->end(), found.begin(), found.end());
}

}  // namespace embed
