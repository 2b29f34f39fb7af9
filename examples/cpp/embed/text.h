// SPDX-License-Identifier: Apache-2.0
// From text to words as BERT sees them: cleaned, lower case, without accents, cut at punctuation.
#ifndef EMBED_TEXT_H_
#define EMBED_TEXT_H_

#include <string>
#include <string_view>
#include <vector>

namespace embed {

// The settings of a BertNormalizer.
struct Normalizer {
  bool clean_text = true;            // no control characters, every white space a space
  bool handle_chinese_chars = true;  // each a word
  bool strip_accents = true;
  bool lowercase = true;
};

// Throws InputError naming the first byte that is not UTF-8.
void RequireUtf8(std::string_view text);

// Words and single punctuation characters of valid UTF-8 text, in UTF-8.
std::vector<std::string> SplitWords(const Normalizer& normalizer, std::string_view text);

// Bytes of the character that begins with this byte.
inline size_t CharacterBytes(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

}  // namespace embed

#endif  // EMBED_TEXT_H_
