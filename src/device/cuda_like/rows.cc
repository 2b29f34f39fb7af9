// SPDX-License-Identifier: Apache-2.0
// Reads rows: the part of TOML that they need, each key on a line of its own.
#include "rows.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "runtime_api.h"

__asm__(
    ".pushsection .rodata\n.local kAnyopRuntimes\nkAnyopRuntimes:\n"
    ".incbin \"" ANYOP_RUNTIME_ROWS "\"\n.byte 0\n.popsection\n");
extern "C" __attribute__((visibility("hidden"))) const char kAnyopRuntimes[];

namespace anyop::cuda_like {
namespace {

constexpr const char* kVariable = "ANYOP_RUNTIMES";
constexpr off_t kLargest = off_t{1} << 20;

// The text between blanks.
std::string_view Trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

Texts Split(std::string_view text, char at) {
  Texts parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(at), text.size());
    if (const std::string_view part = Trimmed(text.substr(0, end)); !part.empty())
      parts.emplace_back(part);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

// One value, which ends at the line's end or a comment.
struct Value {
  std::string_view rest;
  std::string problem;

  bool Take(char letter) {
    rest = Trimmed(rest);
    if (rest.empty() || rest.front() != letter) return false;
    rest.remove_prefix(1);
    return true;
  }
  std::string Text() {
    const size_t end = Take('"') ? rest.find('"') : std::string_view::npos;
    if (end == std::string_view::npos || rest.substr(0, end).find('\\') != std::string_view::npos)
      return Wrong("a text in double quotes, without a backslash");
    std::string text(rest.substr(0, end));
    rest.remove_prefix(end + 1);
    return text;
  }
  int64_t Number() {
    rest = Trimmed(rest);
    size_t end = 0;
    while (end < rest.size() && rest[end] >= '0' && rest[end] <= '9') ++end;
    if (end == 0 || end > 9) return Wrong("a number of up to nine digits"), 0;
    const int64_t number = std::atoll(std::string(rest.substr(0, end)).c_str());
    rest.remove_prefix(end);
    return number;
  }
  template <typename One>
  void List(const One& one) {
    if (!Take('[')) return static_cast<void>(Wrong("a list, [...], on one line"));
    while (problem.empty() && !Take(']')) {
      one();
      if (!Take(',') && (rest.empty() || rest.front() != ']')) Wrong("a list, [...], on one line");
    }
  }
  std::string Wrong(const char* expected) {
    if (problem.empty()) problem = std::string("expected ") + expected;
    return "";
  }
};

enum class Known { kNo, kNeeded, kOptional };

Known KindOf(const std::string& name) {
#define ANYOP_KIND(result, function, parameters, optional) \
  if (name == #function) return (optional) ? Known::kOptional : Known::kNeeded;
  ANYOP_RUNTIME_FUNCTIONS(ANYOP_KIND)
  ANYOP_MODULE_FUNCTIONS(ANYOP_KIND)
#undef ANYOP_KIND
  return Known::kNo;
}

// "HostAlloc = HostMalloc | HostAlloc"
std::string AddName(const std::string& text, Row* row) {
  const size_t equal = text.find('=');
  const std::string ours(Trimmed(std::string_view(text).substr(0, equal)));
  if (equal == std::string::npos) return "names has '" + text + "', expected 'Ours = Theirs'";
  if (KindOf(ours) == Known::kNo) return "names has '" + ours + "', which anyop does not call";
  row->names[ours] = Split(std::string_view(text).substr(equal + 1), '|');
  return "";
}

std::string CheckMissing(const Texts& missing) {
  for (const std::string& name : missing) {
    if (KindOf(name) == Known::kNo) return "missing has '" + name + "', which anyop does not call";
    if (KindOf(name) == Known::kNeeded)
      return "missing has '" + name + "', without which nothing works";
  }
  return "";
}

std::string Set(Row* row, std::string_view key, Value* value) {
  const auto texts = [&](Texts* list) { value->List([&] { list->push_back(value->Text()); }); };
  if (key == "vendor") {
    row->vendor = value->Text();
  } else if (key == "prefix") {
    row->prefix = value->Text();
  } else if (key == "shape") {
    row->shape = value->Text();
    if (row->shape != "cuda" && row->shape != "acl" && row->shape != "cnrt")
      value->Wrong("\"cuda\", \"acl\" or \"cnrt\"");
  } else if (key == "libraries") {
    texts(&row->libraries);
  } else if (key == "names") {
    Texts names;
    texts(&names);
    for (size_t i = 0; i < names.size() && value->problem.empty(); ++i) {
      if (std::string problem = AddName(names[i], row); !problem.empty()) return problem;
    }
  } else if (key == "missing") {
    texts(&row->missing);
    if (value->problem.empty()) return CheckMissing(row->missing);
  } else if (key == "module_libraries") {
    texts(&row->module_libraries);
  } else if (key == "module_prefix") {
    row->module_prefix = value->Text();
  } else if (key == "attributes") {
    value->List([&] { row->attributes.push_back(static_cast<int>(value->Number())); });
    if (row->attributes.size() != 3) value->Wrong("three numbers: units, major, minor");
  } else if (key == "oldest") {
    row->oldest = value->Number();
  } else if (key == "device_type") {
    row->device_type = value->Number();
  } else if (key == "toolchain") {
    row->toolchain = value->Text();
  } else if (key == "warp") {
    row->warp = value->Number();
  } else if (key == "mend") {
    row->mend = value->Text();
  } else {
    return "unknown key '" + std::string(key) +
           "', expected one of vendor, libraries, prefix, shape, names, missing, module_libraries, "
           "module_prefix, attributes, oldest, device_type, toolchain, warp, mend";
  }
  return value->problem.empty() ? "" : std::string(key) + ": " + value->problem;
}

bool IsName(std::string_view name) {
  const char* kLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";  // '.' is row.NAME's
  return !name.empty() && name.size() < 50 &&
         name.find_first_not_of(kLetters) == std::string_view::npos;
}

std::string CheckRow(const Row& row) {
  if (row.libraries.empty()) return "[" + row.name + "] has no libraries";
  if (row.prefix.empty() && row.shape == "cuda") return "[" + row.name + "] has no prefix";
  if (row.module_libraries.empty() == row.module_prefix.empty()) return "";
  return "[" + row.name + "] has one of module_libraries and module_prefix, expected both or none";
}

class Reader {
 public:
  explicit Reader(std::vector<Row>* rows) : rows_(rows) {}

  std::string Read(std::string_view text) {
    for (; !text.empty(); ++line_) {
      const size_t end = std::min(text.find('\n'), text.size());
      const std::string problem = ReadLine(Trimmed(text.substr(0, end)));
      if (!problem.empty()) return ":" + std::to_string(line_) + ": " + problem;
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    const std::string problem = End();
    return problem.empty() ? "" : ": " + problem;
  }

 private:
  std::string ReadLine(std::string_view line) {
    if (line.empty() || line.front() == '#') return "";
    if (line.front() == '[') return Begin(line);
    const size_t equal = line.find('=');
    if (equal == std::string_view::npos) return "expected [name] or key = value";
    if (!row_) return "a key before the first [name]";
    const std::string key(Trimmed(line.substr(0, equal)));
    if (std::find(keys_.begin(), keys_.end(), key) != keys_.end()) return "'" + key + "' twice";
    keys_.push_back(key);
    Value value{line.substr(equal + 1), ""};
    if (std::string problem = Set(row_, key, &value); !problem.empty()) return problem;
    const std::string_view rest = Trimmed(value.rest);
    return rest.empty() || rest.front() == '#' ? "" : "'" + std::string(rest) + "' is too much";
  }

  std::string Begin(std::string_view line) {
    if (std::string problem = End(); !problem.empty()) return problem;
    const size_t end = line.find(']');
    const std::string name(line.substr(1, end == std::string_view::npos ? 0 : end - 1));
    if (!IsName(name)) return "expected [name], of up to 49 letters, digits, '_' and '-'";
    if (std::find(seen_.begin(), seen_.end(), name) != seen_.end()) return "[" + name + "] twice";
    seen_.push_back(name);
    keys_.clear();
    const auto same = std::find_if(rows_->begin(), rows_->end(),
                                   [&](const Row& row) { return row.name == name; });
    row_ = same == rows_->end() ? &rows_->emplace_back() : &*same;
    *row_ = Row{};
    row_->name = row_->vendor = name;
    return "";
  }

  std::string End() const { return row_ ? CheckRow(*row_) : ""; }

  std::vector<Row>* rows_;
  Row* row_ = nullptr;
  Texts seen_, keys_;
  int line_ = 1;
};

std::string ReadFile(const char* path, std::string* text) {
  const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // which waits for no pipe
  if (file < 0) return std::string(": ") + std::strerror(errno);
  struct stat about;
  std::string problem;
  if (fstat(file, &about) || !S_ISREG(about.st_mode)) {
    problem = " is no file of rows: it is a folder, or something else that is no regular file";
  } else if (about.st_size > kLargest) {
    problem = " is too large for a file of rows";
  } else {
    text->resize(static_cast<size_t>(about.st_size));
    const ssize_t got = read(file, text->data(), text->size());
    text->resize(got < 0 ? 0 : static_cast<size_t>(got));
    if (got < 0) problem = std::string(": ") + std::strerror(errno);
  }
  close(file);
  return problem;
}

}  // namespace

std::string ReadRows(std::vector<Row>* rows) {
  rows->clear();
  std::string problem = Reader(rows).Read(kAnyopRuntimes);
  if (!problem.empty()) return "runtimes.toml" + problem;
  const char* path = std::getenv(kVariable);
  if (!path || !*path) return "";
  std::string text;
  problem = ReadFile(path, &text);
  if (problem.empty()) problem = Reader(rows).Read(text);
  return problem.empty() ? "" : std::string(kVariable) + "=" + path + problem;
}

}  // namespace anyop::cuda_like
