// SPDX-License-Identifier: Apache-2.0
// From text to words as BERT sees them: cleaned, lower case, without accents, cut at punctuation.
//
// What a letter, a mark or punctuation is, is ICU's word; the settings and their order are those
// of the BertNormalizer and BertPreTokenizer that tokenizer.json names. Their library (tokenizers
// 0.23) knows marks, punctuation and control characters up to Unicode 8; so does this, for equal
// tokens. Six rare characters whose kind was changed later, such as U+1734, are cut otherwise.
#include "text.h"

#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>
#include <unicode/utf8.h>

#include <cstdint>
#include <functional>
#include <stdexcept>

#include "input.h"

namespace embed {
namespace {

using icu::UnicodeString;

constexpr size_t kLongestText = size_t{1} << 28;  // ICU counts in 32 bits, three times as many

// Whether the character is of one of these kinds, and was so in Unicode 8.
bool IsOf(uint32_t kinds, UChar32 c) {
  UVersionInfo age;
  if (!(U_GET_GC_MASK(c) & kinds)) return false;
  u_charAge(c, age);
  return age[0] <= 8;
}

bool IsControl(UChar32 c) {
  if (c == '\t' || c == '\n' || c == '\r') return false;
  return IsOf(U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CO_MASK, c);
}

bool IsPunctuation(UChar32 c) {
  const bool is_ascii = c < 0x80;  // there + and $ count, which Unicode calls symbols
  return is_ascii ? u_isgraph(c) && !u_isalnum(c) : IsOf(U_GC_P_MASK, c);
}

bool IsChinese(UChar32 c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
         (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
         (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

// The text of what each character becomes.
template <typename Append>
UnicodeString Map(const UnicodeString& text, Append append) {
  UnicodeString mapped;
  for (int32_t i = 0; i < text.length(); i = text.moveIndex32(i, 1))
    append(text.char32At(i), mapped);
  return mapped;
}

void AppendClean(UChar32 c, UnicodeString& to) {
  if (c == 0 || c == 0xFFFD || IsControl(c)) return;
  to.append(u_isUWhiteSpace(c) ? UChar32{' '} : c);
}

void AppendSpaced(UChar32 c, UnicodeString& to) {
  if (!IsChinese(c)) {
    to.append(c);
    return;
  }
  to.append(UChar32{' '}).append(c).append(UChar32{' '});
}

void AppendUnmarked(UChar32 c, UnicodeString& to) {
  if (!IsOf(U_GC_MN_MASK, c)) to.append(c);
}

void AppendLower(UChar32 c, UnicodeString& to) {
  to.append(u_tolower(c));
  if (c == 0x130) to.append(UChar32{0x307});  // the one character whose lower case is two
}

UnicodeString Decomposed(const UnicodeString& text) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* nfd = icu::Normalizer2::getNFDInstance(status);
  if (U_FAILURE(status)) throw std::runtime_error(u_errorName(status));
  UnicodeString decomposed = nfd->normalize(text, status);
  if (U_FAILURE(status)) throw std::runtime_error(u_errorName(status));
  return decomposed;
}

UnicodeString Normalize(const Normalizer& normalizer, UnicodeString text) {
  if (normalizer.clean_text) text = Map(text, AppendClean);
  if (normalizer.handle_chinese_chars) text = Map(text, AppendSpaced);
  if (normalizer.strip_accents) text = Map(Decomposed(text), AppendUnmarked);
  if (normalizer.lowercase) text = Map(text, AppendLower);
  return text;
}

}  // namespace

void RequireUtf8(std::string_view text) {
  if (text.size() > kLongestText) throw InputError("the text is larger than 256 MiB");
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  const auto size = static_cast<int32_t>(text.size());
  for (int32_t i = 0; i < size;) {
    const int32_t begin = i;
    UChar32 c;
    U8_NEXT(bytes, i, size, c);
    if (c < 0) throw InputError("the text is not valid UTF-8 (byte " + std::to_string(begin) + ")");
  }
}

std::vector<std::string> SplitWords(const Normalizer& normalizer, std::string_view text) {
  std::vector<std::string> words;
  UnicodeString word;
  const auto finish = [&] {
    if (!word.isEmpty()) word.toUTF8String(words.emplace_back());
    word.remove();
  };
  const icu::StringPiece piece(text.data(), static_cast<int32_t>(text.size()));
  const UnicodeString normal = Normalize(normalizer, UnicodeString::fromUTF8(piece));
  for (int32_t i = 0; i < normal.length(); i = normal.moveIndex32(i, 1)) {
    const UChar32 c = normal.char32At(i);
    const bool alone = IsPunctuation(c);
    if (alone || u_isUWhiteSpace(c)) finish();
    if (!u_isUWhiteSpace(c)) word.append(c);
    if (alone) finish();
  }
  finish();
  return words;
}

}  // namespace embed
