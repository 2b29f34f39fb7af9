// SPDX-License-Identifier: Apache-2.0
// Reads words and their places from a text, and says what was found where another was expected.
#include "router/read/route_text.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>

#include "router/read/route_file.h"

namespace anyop {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool IsContinuation(char c) { return (c & 0xC0) == 0x80; }

// The bytes of the character at the beginning of a text, 0 when they are no UTF-8.
size_t CharacterBytes(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const size_t bytes = first < 0xC2   ? 0
                       : first < 0xE0 ? 2
                       : first < 0xF0 ? 3
                       : first < 0xF5 ? 4
                                      : 0;
  if (bytes == 0 || text.size() < bytes) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if (!IsContinuation(text[i])) return 0;
  }
  // What could be written shorter, surrogates, and what lies above U+10FFFF.
  if ((first == 0xE0 && byte(1) < 0xA0) || (first == 0xED && byte(1) > 0x9F) ||
      (first == 0xF0 && byte(1) < 0x90) || (first == 0xF4 && byte(1) > 0x8F)) {
    return 0;
  }
  return bytes;
}

std::string Hex(char c) {
  char text[8];
  std::snprintf(text, sizeof text, "0x%02x", static_cast<unsigned char>(c));
  return text;
}

// "U+00A0": some characters cannot be seen.
std::string CodePoint(std::string_view character) {
  unsigned point = static_cast<unsigned char>(character[0]) & (0x7Fu >> character.size());
  for (size_t i = 1; i < character.size(); ++i) point = point << 6 | (character[i] & 0x3Fu);
  char text[16];
  std::snprintf(text, sizeof text, "U+%04X", point);
  return text;
}

}  // namespace

bool RouteText::CheckText() {
  if (text_.substr(0, 3) == "\xEF\xBB\xBF") text_.remove_prefix(3);
  for (size_t i = 0; i < text_.size();) {
    const char c = text_[i];
    const bool line_end = c == '\n' || (c == '\r' && text_.substr(i + 1, 1) == "\n");
    const bool control = (c >= 0 && c < ' ' && c != '\t' && !line_end) || c == 0x7F;
    const size_t bytes = CharacterBytes(text_.substr(i));
    if (control || bytes == 0) {
      while (at_ < i) Advance();
      return Bad(spot_, control ? "found the control character " + Hex(c) + ", expected text"
                                : "found the byte " + Hex(c) + ", expected UTF-8");
    }
    i += bytes;
  }
  return true;
}

bool RouteText::AtLineEnd() const {
  const char c = Next();
  return c == '\0' || c == '\n' || c == '\r' || c == '#';
}

void RouteText::Advance() {
  const char c = text_[at_++];
  while (at_ < text_.size() && IsContinuation(text_[at_])) ++at_;
  spot_ = c == '\n' ? Spot{spot_.line + 1, 1} : Spot{spot_.line, spot_.column + 1};
}

void RouteText::SkipBlanks() {
  while (Next() == ' ' || Next() == '\t') Advance();
}

void RouteText::SkipLine() {
  const size_t end = text_.find('\n', at_);
  at_ = end == text_.npos ? text_.size() : end + 1;
  spot_ = {spot_.line + 1, 1};
}

// Everything up to `end`, which lies in the same line.
std::string_view RouteText::Take(size_t end) {
  const size_t begin = at_;
  while (at_ < end) Advance();
  return text_.substr(begin, end - begin);
}

bool RouteText::Skip(char c) {
  if (c == '\0' || Next() != c) return false;
  Advance();
  SkipBlanks();
  return true;
}

size_t RouteText::WordEnd(size_t from, const char* more) const {
  while (from < text_.size() && (IsLetter(text_[from]) || IsDigit(text_[from]) ||
                                 (text_[from] && std::strchr(more, text_[from])))) {
    ++from;
  }
  return from;
}

std::string_view RouteText::Word() {
  const std::string_view word = IsDigit(Next()) ? "" : Take(WordEnd(at_, ""));
  SkipBlanks();
  return word;
}

std::string_view RouteText::Pattern() {
  constexpr const char* kMore = "*?.";
  size_t end = IsDigit(Next()) ? at_ : WordEnd(at_, kMore);
  while (text_.substr(end, 2) == "::") end = WordEnd(end + 2, kMore);
  const std::string_view pattern = Take(end);
  SkipBlanks();
  return pattern;
}

std::string_view RouteText::Path() {
  const bool quoted = Next() == '"';
  const size_t end =
      quoted ? text_.find_first_of("\"\r\n", at_ + 1) : text_.find_first_of(" \t\r\n#", at_);
  if (quoted && (end == text_.npos || text_[end] != '"')) {
    Bad(spot_, "found no second '\"' in the line, expected a path between two");
    return {};
  }
  std::string_view path = Take(end == text_.npos ? text_.size() : end + quoted);
  if (quoted) path = path.substr(1, path.size() - 2);
  if (path.empty()) Expected("the name of a preset or the path of a file");
  SkipBlanks();
  return path;
}

bool RouteText::Number(int64_t* number) {
  const size_t digits = at_ + (Next() == '-');
  const size_t end = WordEnd(digits, ".");
  if (digits >= text_.size() || !IsDigit(text_[digits])) return Expected("a whole number");
  const char* last = text_.data() + end;
  const auto [stop, code] = std::from_chars(text_.data() + at_, last, *number);
  if (stop != last) return Expected("a whole number");
  if (code != std::errc()) return Expected("a number of 64 bits");
  Take(end);
  SkipBlanks();
  return true;
}

bool RouteText::Capability(int64_t* number) {
  const size_t end = WordEnd(at_, ".");
  const std::string_view word = text_.substr(at_, end - at_);
  const size_t dot = word.find('.');
  const auto is_digits = [](std::string_view digits, size_t most) {
    return !digits.empty() && digits.size() <= most &&
           std::all_of(digits.begin(), digits.end(), IsDigit);
  };
  if (dot == word.npos || !is_digits(word.substr(0, dot), 3) || !is_digits(word.substr(dot + 1), 1))
    return Expected("a capability such as 9.0");
  *number = 0;
  for (const char c : word) *number = c == '.' ? *number : *number * 10 + (c - '0');
  Take(end);
  SkipBlanks();
  return true;
}

std::string RouteText::Found() const {
  if (at_ == text_.size()) return "the end of the text";
  if (AtLineEnd()) return "the end of the line";
  const size_t digits = at_ + (Next() == '-');
  const size_t end = WordEnd(digits, ".");
  if (end > digits) return Quoted(text_.substr(at_, end - at_));
  const std::string_view character = text_.substr(at_, CharacterBytes(text_.substr(at_)));
  return Quoted(character) + (character.size() > 1 ? " (" + CodePoint(character) + ")" : "");
}

bool RouteText::Bad(Spot spot, std::string what) {
  error_spot_ = spot;
  *error_ = std::move(what);
  return false;
}

std::string Quoted(std::string_view word) {
  size_t end = word.size();
  if (end > kShownCharacters) {
    end = kShownCharacters;
    while (IsContinuation(word[end])) --end;
  }
  return "'" + std::string(word.substr(0, end)) + (end < word.size() ? "...'" : "'");
}

std::string DidYouMean(std::string_view word, const std::vector<std::string>& known) {
  const std::string near = Nearest(word, known);
  return near.empty() ? near : "; did you mean '" + near + "'?";
}

}  // namespace anyop
