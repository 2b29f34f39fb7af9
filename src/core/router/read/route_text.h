// SPDX-License-Identifier: Apache-2.0
// The words of a route file or of a condition, one after another, each with its place.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace anyop {

struct Term;

// Counted from 1; columns in characters.
struct Spot {
  int line = 1;
  int column = 1;
};

class RouteText {
 public:
  RouteText(std::string_view text, std::string* error) : text_(text), error_(error) {}

  // Whether all of it is UTF-8 without control characters; skips a byte order mark. Goes first.
  bool CheckText();

  Spot spot() const { return spot_; }
  char Next() const { return at_ < text_.size() ? text_[at_] : '\0'; }  // '\0': the end
  bool AtLineEnd() const;
  void SkipBlanks();
  void SkipLine();  // with its end

  // Each of these also skips the blanks behind what it read.
  bool Skip(char c);
  std::string_view Word();     // a name; or empty
  std::string_view Pattern();  // of names of operators: norm*, acme::scale; or empty
  std::string_view Path();     // up to a blank or between double quotes; empty: said by Expected()
  bool Number(int64_t* number);
  bool Capability(int64_t* number);  // 9.0 as 90

  // "found '...', expected ..." of what comes next, or of another word; Bad() says any text. All
  // give false.
  bool Expected(const std::string& what) {
    return Bad(spot_, "found " + Found() + ", expected " + what);
  }
  bool Bad(Spot spot, std::string what);
  Spot error_spot() const { return error_spot_; }

 private:
  std::string_view Take(size_t end);
  void Advance();
  size_t WordEnd(size_t from, const char* more) const;
  std::string Found() const;

  std::string_view text_;
  std::string* error_;
  size_t at_ = 0;
  Spot spot_, error_spot_;
};

// The terms of a condition up to `end`, which stays to be read: ']', or '\0' for the end of the
// text.
bool ReadTerms(RouteText* text, char end, std::vector<Term>* terms);

constexpr size_t kShownCharacters = 60;

// 'float32', cut when it is long.
std::string Quoted(std::string_view word);

}  // namespace anyop
