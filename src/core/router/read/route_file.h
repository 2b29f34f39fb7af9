// SPDX-License-Identifier: Apache-2.0
// Route files as they are written: rules in sections, read from a file and all it includes. What
// the names in them mean is the router's to check.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace anyop {

// Of one file; all files together: 16 times.
constexpr int64_t kMaxRouteFileBytes = int64_t{1} << 20;
constexpr int kMaxIncludeDepth = 16;
constexpr int kMaxChoices = 1000;  // of one kernel

// Where a word stands. Lines and columns count from 1, columns in characters of UTF-8.
struct Place {
  int file = 0;  // in RouteFile::files
  int line = 0;
  int column = 0;
};

enum class Compare { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual };

// One word of a condition: D>8192, D%8=0, dtype=float32|bfloat16, dtype(weight)!=float16,
// device=cuda, rank(X)=2, numel(X)<=4096, contiguous(x)=1, given(mask)=0, softcap=0,
// capability>=8.0. Those of one condition must all hold.
struct Term {
  std::string name;      // "D", "dtype", "rank"
  std::string argument;  // "X" of rank(X); empty without
  int64_t modulo = 0;    // 8 of D%8; 0: none
  Compare compare = Compare::kEqual;
  std::vector<std::string> words;  // of dtype and device: any of these
  int64_t number = 0;              // of all others; 90 of capability 9.0
  Place place;
};

// pattern = backend [, fallback ...], each with or without a choice of it, cuda:5
struct Rule {
  std::string pattern;  // a name of an operator, or with * and ? in it; aten.* of ATen's overloads
  std::vector<std::string> backends;
  std::vector<Term> when;  // of its section; empty: always
  Place place;             // of the pattern
  std::vector<Place> backend_places;
  int machine = -1;  // in RouteFile::machines: choices are for it alone
};

// measured on "NVIDIA H200" by "0.1.0": what the choices of a file's rules are for.
struct Machine {
  std::string gpu;
  std::string version;  // anyop's
  Place place;
};

struct RouteFile {
  std::vector<std::string> files;  // as messages name them; the first is the one that was read
  std::vector<Rule> rules;  // in the order of the text, included ones where they are included
  std::vector<std::string> later;  // namespaces whose operators may be loaded later
  std::vector<Machine> machines;
};

// Reads a file, or the preset of that name, with all it includes. What is included within a section
// holds only where the section does, [always] in it too. On mistakes false, *error has a line for
// each, "file:line:column: what was found, what was expected", and *routes what could be read.
bool ReadRouteFile(const std::string& path, RouteFile* routes, std::string* error);

// The same for a text that stands for the file `name`; on mistakes *routes stays as it is.
bool ParseRoutes(std::string_view text, const std::string& name, RouteFile* routes,
                 std::string* error);

// The words of one condition, as they stand between [when and ] or in a schema. *error has no place
// in front: "column 7: ..." at most.
bool ParseCondition(std::string_view text, std::vector<Term>* terms, std::string* error);

// "file:line:column: "
std::string PlaceText(const RouteFile& routes, const Place& place);

// Whether a name fits a pattern with * (any characters) and ? (one).
bool FitsPattern(std::string_view pattern, std::string_view name);

// The known name that is written most like this one; empty when none is near.
std::string Nearest(std::string_view name, const std::vector<std::string>& known);
// "; did you mean 'rms_norm'?", to end a message with; empty where nothing is near.
std::string DidYouMean(std::string_view name, const std::vector<std::string>& known);

// The text of a preset, and the names of all; nullptr when there is none.
const char* PresetText(std::string_view name);
std::vector<std::string> PresetNames();

}  // namespace anyop
