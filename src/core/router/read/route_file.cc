// SPDX-License-Identifier: Apache-2.0
// Reads route files: rules, sections and includes, with the place of every mistake.
#include "router/read/route_file.h"

#include <algorithm>
#include <unordered_map>

#include "router/read/route_read.h"
#include "router/read/route_text.h"

namespace anyop {
namespace {

constexpr size_t kMaxRules = 8192;  // of all files together
constexpr size_t kMaxFiles = 1024;  // as often as they are included
constexpr size_t kMaxNamespaces = 256;
constexpr size_t kMaxBackends = 16;
constexpr int64_t kMaxTotalBytes = 16 * kMaxRouteFileBytes;
constexpr size_t kShownPathBytes = 1024;
constexpr int kMaxMistakes = 20;  // that are said at once

// The end of a path says more than its beginning.
std::string ShownPath(const std::string& path, size_t bytes) {
  if (path.size() <= bytes) return path;
  size_t begin = path.size() - bytes;
  while (begin < path.size() && (path[begin] & 0xC0) == 0x80) ++begin;  // no half character
  return "..." + path.substr(begin);
}

std::string QuotedPath(const std::string& path) {
  return "'" + ShownPath(path, kShownCharacters) + "'";
}

bool IsPreset(std::string_view name) { return name.find_first_of("/.") == name.npos; }

// One file that is being read, and the one that includes it.
struct Open {
  const Open* parent;
  int depth;
  int file;            // in RouteFile::files
  std::string key;     // which file it is, by whatever path it was reached
  std::string folder;  // before what it includes: "", or with a / at its end
};

class RouteReader {
 public:
  RouteReader(RouteFile* routes, std::string* error) : routes_(routes), error_(error) {}

  bool ReadText(std::string_view text, const std::string& name) {
    const Open open = {nullptr, 1, AddFile(name), "", FolderOf(name)};
    return Parse(text, open, {});
  }

  // A path or a preset's name, said at `place`; by the user himself when there is no parent.
  bool ReadNamed(const std::string& path, const Open* parent, Place place,
                 const std::vector<Term>& when);

  // Keeps the mistake that was said, so that those behind it are said too; false when they are
  // enough.
  bool Note() {
    if (mistakes_.find(*error_) != mistakes_.npos) return num_mistakes_ < kMaxMistakes;
    mistakes_ += (mistakes_.empty() ? "" : "\n") + *error_;
    return ++num_mistakes_ < kMaxMistakes;
  }

  // Whether all that was read is good; *error has all that is not.
  bool End(bool good) {
    if (!good) Note();
    *error_ = mistakes_;
    return mistakes_.empty();
  }

 private:
  friend class FileParser;

  static std::string FolderOf(const std::string& path) {
    return path.substr(0, path.rfind('/') + 1);  // rfind's npos + 1 is 0
  }

  int AddFile(const std::string& name) {
    const auto [found, added] = file_indices_.emplace(name, routes_->files.size());
    if (added) routes_->files.push_back(name);
    return static_cast<int>(found->second);
  }

  bool Bad(const Place& place, const std::string& what) {
    *error_ = PlaceText(*routes_, place) + what;
    return false;
  }

  bool NoPreset(const std::string& name, const Place& place);
  bool CheckInclude(const Open& open, const Place& place, size_t bytes);
  bool Parse(std::string_view text, const Open& open, const std::vector<Term>& when);

  RouteFile* routes_;
  std::string* error_;
  std::unordered_map<std::string, size_t> file_indices_;
  size_t num_read_ = 0;
  int64_t total_bytes_ = 0;
  std::string mistakes_;
  int num_mistakes_ = 0;
};

// One file's lines.
class FileParser {
 public:
  FileParser(RouteReader* reader, std::string_view text, const Open& open,
             const std::vector<Term>& when)
      : reader_(reader), open_(open), text_(text, reader->error_), always_(when), when_(when) {}

  bool Parse() {
    if (!text_.CheckText()) return Placed(false);
    for (; text_.SkipBlanks(), text_.Next() != '\0'; text_.SkipLine()) {
      const size_t rules = reader_->routes_->rules.size();
      if (text_.AtLineEnd() || Placed(ParseLine())) continue;
      if (!placed_) reader_->routes_->rules.resize(rules);  // of this line
      placed_ = false;
      if (!reader_->Note()) return false;
    }
    return true;
  }

 private:
  Place PlaceOf(Spot spot) const { return {open_.file, spot.line, spot.column}; }

  // Puts the place in front of what the text said; an included file has put its own.
  bool Placed(bool good) {
    if (good || placed_) return good;
    return reader_->Bad(PlaceOf(text_.error_spot()), std::string(*reader_->error_));
  }

  bool ParseLine() {
    if (text_.Skip('[')) return ParseSection();
    const Spot spot = text_.spot();
    const std::string word(text_.Pattern());
    if (word.empty()) return text_.Expected("the name of an operator, include, namespace or '['");
    if (text_.Skip('=')) return ParseRule(spot, word) && ParseEnd("',' or the end of the line");
    if (word == "include") return ParseInclude();
    if (word == "namespace") return ParseNamespace() && ParseEnd("the end of the line");
    if (word == "measured") return ParseMachine(spot) && ParseEnd("the end of the line");
    return text_.Expected(
        "'='" + DidYouMean(word, {"include", "namespace", "measured", "[when", "[always]"}));
  }

  bool ParseEnd(const char* expected) { return text_.AtLineEnd() || text_.Expected(expected); }

  bool ParseSection() {
    const Spot spot = text_.spot();
    const std::string word(text_.Word());
    when_ = always_;
    patterns_.clear();
    if (word == "when") {
      if (text_.Next() == ']') return text_.Expected("a condition such as dtype=bfloat16");
      if (!ReadTerms(&text_, ']', &when_)) return false;
      for (size_t i = always_.size(); i < when_.size(); ++i) when_[i].place.file = open_.file;
    } else if (word != "always") {
      const std::string expected = "'when' or 'always'" + DidYouMean(word, {"when", "always"});
      return word.empty() ? text_.Expected(expected)
                          : text_.Bad(spot, "found " + Quoted(word) + ", expected " + expected);
    }
    if (!text_.Skip(']')) return text_.Expected("']'");
    return ParseEnd("the end of the line");
  }

  bool ParseRule(Spot spot, std::string pattern) {
    if (reader_->routes_->rules.size() == kMaxRules)
      return text_.Expected("at most " + std::to_string(kMaxRules) + " rules in all files");
    // acme::scale is acme.scale.
    for (size_t i = 0; (i = pattern.find("::", i)) != pattern.npos;) pattern.replace(i, 2, ".");
    const auto [before, added] = patterns_.emplace(pattern, spot.line);
    if (!added)
      return text_.Bad(spot, "found " + Quoted(pattern) + " again, expected one rule; line " +
                                 std::to_string(before->second) + " has it in the same section");
    Rule rule;
    rule.pattern = std::move(pattern);
    rule.when = when_;
    rule.place = PlaceOf(spot);
    rule.machine = machine_;
    if (!ParseBackends(&rule)) return false;
    reader_->routes_->rules.push_back(std::move(rule));
    return true;
  }

  bool ParseBackends(Rule* rule) {
    std::vector<std::string>& backends = rule->backends;
    do {
      if (backends.size() == kMaxBackends)
        return text_.Expected("at most " + std::to_string(kMaxBackends) + " backends");
      const Spot spot = text_.spot();
      std::string backend(text_.Word());
      if (backend.empty()) return text_.Expected("the name of a backend");
      int64_t choice;
      if (text_.Skip(':')) {
        const Spot at = text_.spot();
        if (!text_.Number(&choice)) return false;
        if (choice < 0 || choice >= kMaxChoices)
          return text_.Bad(at, "found " + std::to_string(choice) +
                                   ", expected a choice from 0 to " +
                                   std::to_string(kMaxChoices - 1));
        backend += ":" + std::to_string(choice);
      }
      if (std::find(backends.begin(), backends.end(), backend) != backends.end())
        return text_.Bad(spot, "found " + Quoted(backend) + " twice, expected each backend once");
      backends.push_back(backend);
      rule->backend_places.push_back(PlaceOf(spot));
    } while (text_.Skip(','));
    return true;
  }

  bool ParseNamespace() {
    const std::string name(text_.Word());
    if (name.empty()) return text_.Expected("the name of a namespace");
    std::vector<std::string>& later = reader_->routes_->later;
    if (std::find(later.begin(), later.end(), name) == later.end()) later.push_back(name);
    return later.size() <= kMaxNamespaces ||
           text_.Expected("at most " + std::to_string(kMaxNamespaces) + " namespaces");
  }

  // "NVIDIA H200" behind on.
  bool ParseQuoted(const std::string& before, std::string* quoted) {
    if (text_.Word() != before || text_.Next() != '"')
      return text_.Expected("measured on \"NVIDIA H200\" by \"0.1.0\"");
    *quoted = text_.Path();
    return !quoted->empty();
  }

  bool ParseMachine(Spot spot) {
    Machine machine;
    machine.place = PlaceOf(spot);
    if (!ParseQuoted("on", &machine.gpu) || !ParseQuoted("by", &machine.version)) return false;
    machine_ = static_cast<int>(reader_->routes_->machines.size());
    reader_->routes_->machines.push_back(std::move(machine));
    return true;
  }

  bool ParseInclude() {
    const Place place = PlaceOf(text_.spot());
    std::string path(text_.Path());
    if (path.empty() || !ParseEnd("the end of the line")) return false;
    if (!IsPreset(path) && path[0] != '/') path.insert(0, open_.folder);
    placed_ = true;
    if (!reader_->ReadNamed(path, &open_, place, when_)) return false;
    placed_ = false;
    return true;
  }

  RouteReader* reader_;
  const Open& open_;
  RouteText text_;
  const std::vector<Term> always_;  // of the section that includes this file
  std::vector<Term> when_;
  std::unordered_map<std::string, int> patterns_;  // of this section, with their lines
  int machine_ = -1;
  bool placed_ = false;
};

bool RouteReader::Parse(std::string_view text, const Open& open, const std::vector<Term>& when) {
  return FileParser(this, text, open, when).Parse();
}

bool RouteReader::NoPreset(const std::string& name, const Place& place) {
  std::string expected;
  for (const std::string& preset : PresetNames()) expected += preset + ", ";
  return Bad(place, "found no preset " + Quoted(name) + ", expected " + expected +
                        "or a path with '/' or '.' in it" + DidYouMean(name, PresetNames()));
}

bool RouteReader::CheckInclude(const Open& open, const Place& place, size_t bytes) {
  std::string chain = QuotedPath(routes_->files[open.file]);
  for (const Open* outer = open.parent; outer; outer = outer->parent) {
    chain.insert(0, QuotedPath(routes_->files[outer->file]) + " includes ");
    if (outer->key == open.key) return Bad(place, "found an include loop: " + chain);
  }
  if (open.depth > kMaxIncludeDepth)
    return Bad(place, "found a file within " + std::to_string(kMaxIncludeDepth) +
                          " others, expected fewer");
  if (++num_read_ > kMaxFiles)
    return Bad(place, "found more than " + std::to_string(kMaxFiles) + " includes");
  total_bytes_ += static_cast<int64_t>(bytes);
  if (total_bytes_ > kMaxTotalBytes)
    return Bad(place, "found more than " + std::to_string(kMaxTotalBytes) +
                          " bytes in all files together");
  return true;
}

bool RouteReader::ReadNamed(const std::string& path, const Open* parent, Place place,
                            const std::vector<Term>& when) {
  const bool is_preset = IsPreset(path);
  const char* preset = is_preset ? PresetText(path) : nullptr;
  if (!parent) place = {AddFile(preset ? "preset " + path : path), 1, 1};
  if (is_preset && !preset) return NoPreset(path, place);
  FileText file;
  std::string wrong;
  if (!preset && !ReadFileText(path, &file, &wrong))
    return Bad(place, (parent ? QuotedPath(path) + ": " : "") + wrong);
  Open open = {parent, parent ? parent->depth + 1 : 1, 0, "", ""};
  open.file = AddFile(preset ? "preset " + path : path);
  open.key = preset ? path : std::to_string(file.device) + ":" + std::to_string(file.inode);
  if (!preset) open.folder = FolderOf(path);
  const std::string_view text = preset ? std::string_view(preset) : std::string_view(file.text);
  return CheckInclude(open, place, text.size()) && Parse(text, open, when);
}

}  // namespace

bool ReadRouteFile(const std::string& path, RouteFile* routes, std::string* error) {
  *routes = {};
  RouteReader reader(routes, error);
  return reader.End(reader.ReadNamed(path, nullptr, {}, {}));
}

bool ParseRoutes(std::string_view text, const std::string& name, RouteFile* routes,
                 std::string* error) {
  RouteFile found;
  RouteReader reader(&found, error);
  if (!reader.End(reader.ReadText(text, name))) return false;
  *routes = std::move(found);
  return true;
}

std::string PlaceText(const RouteFile& routes, const Place& place) {
  return ShownPath(routes.files[place.file], kShownPathBytes) + ":" + std::to_string(place.line) +
         ":" + std::to_string(place.column) + ": ";
}

}  // namespace anyop
