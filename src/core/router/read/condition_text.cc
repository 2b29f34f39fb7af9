// SPDX-License-Identifier: Apache-2.0
// Reads conditions: dtype=float32|bfloat16 device=cuda D>8192 numel(X)<=4096.
#include <algorithm>

#include "router/read/route_file.h"
#include "router/read/route_text.h"
#include "tensors/dtype.h"

namespace anyop {
namespace {

constexpr size_t kMaxTerms = 32;  // with those of the sections that include this one
constexpr const char* kDevices[] = {"cpu", "cuda", "hip", "anyop"};

// What a term may say besides sizes by their letters.
struct Key {
  const char* name;
  enum { kNever, kMay, kMust } argument;
  const char* example;
};
constexpr Key kKeys[] = {
    {"dtype", Key::kMay, "dtype(x)=float32"},
    {"device", Key::kNever, "device=cuda"},
    {"rank", Key::kMust, "rank(X)=2"},
    {"numel", Key::kMust, "numel(X)<=4096"},
    {"contiguous", Key::kMust, "contiguous(x)=1"},
    {"address", Key::kMust, "address(x)%16=0"},
    {"given", Key::kMust, "given(mask)=0"},
    {"capability", Key::kNever, "capability>=8.0"},
};

class TermReader {
 public:
  TermReader(RouteText* text, Term* term) : text_(text), term_(term), start_(text->spot()) {}

  bool Read() {
    term_->place.line = start_.line;
    term_->place.column = start_.column;
    term_->name = text_->Word();
    if (term_->name.empty()) return text_->Expected("dtype, device, a size or another key");
    for (const Key& key : kKeys) {
      if (term_->name == key.name) key_ = &key;
    }
    names_ = term_->name == "dtype" || term_->name == "device";
    flag_ = term_->name == "contiguous" || term_->name == "given";
    capability_ = term_->name == "capability";
    return ReadArgument() && ReadModulo() && ReadCompare() && ReadValue();
  }

 private:
  bool UnknownKey() {
    std::vector<std::string> known;
    for (const Key& key : kKeys) known.push_back(key.name);
    return text_->Bad(start_, "found " + Quoted(term_->name) +
                                  ", expected dtype, device, rank, numel, contiguous, address, "
                                  "given, capability, a size or an "
                                  "argument" +
                                  DidYouMean(term_->name, known));
  }

  bool ReadArgument() {
    if (text_->Next() != '(') {
      if (!key_ || key_->argument != Key::kMust) return true;
      return text_->Expected(std::string("'(', as in ") + key_->example);
    }
    if (!key_) return UnknownKey();
    if (key_->argument == Key::kNever)
      return text_->Expected(std::string("no argument, as in ") + key_->example);
    text_->Skip('(');
    term_->argument = text_->Word();
    if (term_->argument.empty())
      return text_->Expected(std::string("a name, as in ") + key_->example);
    return text_->Skip(')') || text_->Expected("')'");
  }

  bool ReadModulo() {
    if (names_ || flag_ || capability_ || text_->Next() != '%') return true;
    text_->Skip('%');
    const Spot spot = text_->spot();
    if (!text_->Number(&term_->modulo)) return false;
    return term_->modulo > 0 || text_->Bad(spot, "found " + std::to_string(term_->modulo) +
                                                     " behind %, expected a number above 0");
  }

  bool ReadCompare() {
    const bool less = text_->Next() == '<', greater = text_->Next() == '>';
    if (names_ || flag_ ? less || greater : false) return text_->Expected("'=' or '!='");
    if (less || greater) {
      text_->Skip(text_->Next());
      const bool equal = text_->Skip('=');
      term_->compare = less ? (equal ? Compare::kLessEqual : Compare::kLess)
                            : (equal ? Compare::kGreaterEqual : Compare::kGreater);
      return true;
    }
    if (text_->Skip('!')) term_->compare = Compare::kNotEqual;
    if (text_->Skip('=')) return true;
    if (term_->compare == Compare::kNotEqual) return text_->Expected("'=' behind '!'");
    return text_->Expected(names_ || flag_ ? "'=' or '!='" : "=, !=, <, <=, >, >= or %");
  }

  bool ReadValue() {
    if (names_) return ReadNames();
    if (capability_) return text_->Capability(&term_->number);
    const Spot spot = text_->spot();
    if (!text_->Number(&term_->number)) {
      // dtpye=float32: no size was meant.
      const bool misspelt = !key_ && !Nearest(term_->name, {"dtype", "device"}).empty();
      return misspelt && UnknownKey();
    }
    if (!flag_ || term_->number == 0 || term_->number == 1) return true;
    return text_->Bad(spot, "found " + std::to_string(term_->number) + ", expected 0 or 1");
  }

  bool ReadNames() {
    const bool dtype = term_->name == "dtype";
    std::vector<std::string> known;
    if (dtype) {
      for (int i = 0; i < kAnyopNumDtypes; ++i) known.push_back(DtypeName(i));
    } else {
      known.assign(std::begin(kDevices), std::end(kDevices));
    }
    do {
      const Spot spot = text_->spot();
      const std::string word(text_->Word());
      const std::string expected = dtype ? "a dtype such as float32" : "cpu, cuda, hip or anyop";
      if (word.empty()) return text_->Expected(expected);
      if (std::find(known.begin(), known.end(), word) == known.end()) {
        return text_->Bad(
            spot, "found " + Quoted(word) + ", expected " + expected + DidYouMean(word, known));
      }
      std::vector<std::string>& words = term_->words;
      if (std::find(words.begin(), words.end(), word) != words.end())
        return text_->Bad(spot, "found " + Quoted(word) + " twice, expected each name once");
      words.push_back(word);
    } while (text_->Skip('|'));
    return text_->Next() != ',' || text_->Expected("'|' between two names");
  }

  RouteText* text_;
  Term* term_;
  Spot start_;
  const Key* key_ = nullptr;
  bool names_ = false, flag_ = false, capability_ = false;
};

}  // namespace

bool ReadTerms(RouteText* text, char end, std::vector<Term>* terms) {
  for (text->SkipBlanks(); text->Next() != end;) {
    if (text->AtLineEnd()) return text->Expected(end ? "']'" : "the condition in one line");
    if (terms->size() == kMaxTerms)
      return text->Expected("at most " + std::to_string(kMaxTerms) + " words in a condition");
    Term term;
    if (!TermReader(text, &term).Read()) return false;
    terms->push_back(std::move(term));
  }
  return true;
}

bool ParseCondition(std::string_view text, std::vector<Term>* terms, std::string* error) {
  RouteText words(text, error);
  std::vector<Term> found;
  if (!words.CheckText() || !ReadTerms(&words, '\0', &found)) {
    *error = "column " + std::to_string(words.error_spot().column) + ": " + *error;
    return false;
  }
  *terms = std::move(found);
  return true;
}

}  // namespace anyop
