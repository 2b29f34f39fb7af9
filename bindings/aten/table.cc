// SPDX-License-Identifier: Apache-2.0
// The table's file: kept as text, a name's overloads are read when they are first asked for.
#include <cstdlib>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "api/c_error.h"
#include "op.h"
#include "router/read/route_file.h"
#include "runtime.h"
#include "schema.h"

namespace anyop::aten {
namespace {

// The lines behind "op <name> <flags>".
struct Entry {
  std::string_view flags, lines;
  std::unique_ptr<Name> name;  // under the lock
};

std::string_view Cut(std::string_view* text, char until) {
  const size_t end = text->find(until);
  const std::string_view part = text->substr(0, end);
  text->remove_prefix(end == std::string_view::npos ? text->size() : end + 1);
  return part;
}

class Table {
 public:
  explicit Table(std::string text) : text_(std::move(text)) {}

  // "" when done, else what is wrong.
  std::string Read();
  const Name* Find(std::string_view name);
  std::string Nearest(std::string_view name) const;

  std::string version, libraries;
  std::unordered_map<std::string, int32_t> codes[kAnyopAtenKindOther + 1];
  std::unordered_map<int32_t, std::string> names[kAnyopAtenKindOther + 1];

 private:
  bool ReadLine(std::string_view line, std::string_view rest);
  void ReadCode(AnyopAtenKind kind, std::string_view line);
  std::unique_ptr<Name> ReadName(std::string_view name, const Entry& entry) const;

  const std::string text_;
  std::mutex lock_;
  std::unordered_map<std::string_view, Entry> entries_;
  Entry* open_ = nullptr;  // whose lines are being read
};

void Table::ReadCode(AnyopAtenKind kind, std::string_view line) {
  const std::string name(Cut(&line, ' '));
  const int32_t code = std::atoi(std::string(line).c_str());
  codes[kind][name] = code;
  names[kind].emplace(code, name);  // the first is the one to show
}

bool Table::ReadLine(std::string_view line, std::string_view rest) {
  const std::string_view word = Cut(&line, ' ');
  if (word == "op") {
    const std::string_view name = Cut(&line, ' ');
    open_ = &entries_[name];
    open_->flags = line;
    open_->lines = rest.substr(0, 0);
    return !name.empty();
  }
  if (word == "torch") return version = Cut(&line, ' '), true;
  if (word == "libraries") return libraries = line, true;
  if (word == "dtype") return ReadCode(kAnyopAtenKindDtype, line), true;
  if (word == "layout") return ReadCode(kAnyopAtenKindLayout, line), true;
  if (word == "format") return ReadCode(kAnyopAtenKindMemoryFormat, line), true;
  if (word == "device") return ReadCode(kAnyopAtenKindDevice, line), true;
  return false;
}

std::string Table::Read() {
  std::string_view rest = text_;
  if (Cut(&rest, '\n') != "anyop-aten 1") return "it is no table of this version of anyop";
  if (text_.size() < 2 || text_.compare(text_.size() - 2, 2, "\n\n") != 0)
    return "its end is missing";
  while (!rest.empty()) {
    const char* begin = rest.data();
    const std::string_view line = Cut(&rest, '\n');
    if (line.empty()) break;
    if (line.find('\t') != std::string_view::npos) {
      if (!open_) return "an overload stands before its name";
      const char* first = open_->lines.empty() ? begin : open_->lines.data();
      open_->lines = {first, static_cast<size_t>(line.data() + line.size() - first)};
    } else if (!ReadLine(line, rest)) {
      return "this line is not understood: " + std::string(line);
    }
  }
  return version.empty() || entries_.empty() ? "it names no torch or no operators" : "";
}

std::unique_ptr<Name> Table::ReadName(std::string_view name, const Entry& entry) const {
  auto made = std::make_unique<Name>();
  made->name = name;
  std::string_view lines = entry.lines;
  while (!lines.empty()) {
    std::string_view line = Cut(&lines, '\n');
    std::string_view overload = Cut(&line, '\t');
    Cut(&overload, '!');
    auto op = std::make_unique<Op>();
    if (!ReadSchema(line, op.get()) || !ReadHiddenWrites(overload, op.get()))
      op->refusal = "its schema is not understood: " + std::string(line);
    op->numbers_as_tensors = entry.flags.find('n') != std::string_view::npos;
    op->needs_alignment = entry.flags.find('a') != std::string_view::npos;
    made->overloads.push_back(op.release());
  }
  return made;
}

const Name* Table::Find(std::string_view name) {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return nullptr;
  const std::lock_guard<std::mutex> guard(lock_);
  if (!found->second.name) found->second.name = ReadName(name, found->second);
  return found->second.name.get();
}

std::string Table::Nearest(std::string_view name) const {
  std::vector<std::string> known;
  for (const auto& [other, entry] : entries_) known.emplace_back(other);
  return anyop::Nearest(name, known);
}

std::atomic<Table*> table{nullptr};
std::mutex open_lock;

Table* Opened() {
  Table* opened = table.load(std::memory_order_acquire);
  if (!opened) SetError(kAnyopRuntimeError, "no table of ATen is open: call AnyopAtenOpen first");
  return opened;
}

bool ReadFile(const char* path, std::string* text) {
  std::FILE* file = std::fopen(path, "rb");
  if (!file) return false;
  char part[1 << 16];
  while (const size_t count = std::fread(part, 1, sizeof part, file)) text->append(part, count);
  const bool good = !std::ferror(file);
  std::fclose(file);
  return good;
}

int32_t Open(const char* path, const char* glue) {
  const std::lock_guard<std::mutex> guard(open_lock);
  std::string text, why;
  if (!path || !ReadFile(path, &text))
    return SetError(kAnyopValueError,
                    ("AnyopAtenOpen: cannot read " + std::string(path ? path : "NULL")).c_str());
  auto made = std::make_unique<Table>(std::move(text));
  why = made->Read();
  if (!why.empty())
    return SetError(kAnyopValueError, ("AnyopAtenOpen: " + std::string(path) + ": " + why).c_str());
  if (const Table* opened = table.load()) {
    if (opened->version == made->version) return kAnyopOk;
    why = "a table for torch " + opened->version + " is open, " + path + " is for " + made->version;
    return SetError(kAnyopValueError, ("AnyopAtenOpen: " + why).c_str());
  }
  why = StartRuntime(made->libraries, made->version, glue);
  if (!why.empty()) return SetError(kAnyopRuntimeError, ("AnyopAtenOpen: " + why).c_str());
  table.store(made.release(), std::memory_order_release);
  return kAnyopOk;
}

}  // namespace

const Name* FindName(std::string_view name) {
  if (name.substr(0, 6) == "aten::") name.remove_prefix(6);
  Table* opened = Opened();
  if (!opened) return nullptr;
  const Name* found = opened->Find(name);
  if (found) return found;
  const std::string nearest = opened->Nearest(name);
  SetError(kAnyopValueError, ("torch " + opened->version +
                              " has no operator aten::" + std::string(name.substr(0, 100)) +
                              (nearest.empty() ? "" : "; did you mean '" + nearest + "'?"))
                                 .c_str());
  return nullptr;
}

int32_t CodeOf(AnyopAtenKind kind, std::string_view name) {
  const Table* opened = Opened();
  if (!opened || kind > kAnyopAtenKindOther) return -1;
  if (name.substr(0, 6) == "torch.") name.remove_prefix(6);
  const auto found = opened->codes[kind].find(std::string(name));
  return found == opened->codes[kind].end() ? -1 : found->second;
}

const char* NameOf(AnyopAtenKind kind, int32_t code) {
  const Table* opened = Opened();
  if (!opened || kind > kAnyopAtenKindOther) return nullptr;
  const auto found = opened->names[kind].find(code);
  return found == opened->names[kind].end() ? nullptr : found->second.c_str();
}

bool ParseDevice(std::string_view text, int64_t* device) {
  const size_t colon = text.find(':');
  const int32_t type = CodeOf(kAnyopAtenKindDevice, text.substr(0, colon));
  if (type < 0) return false;
  int64_t index = -1;
  if (colon != std::string_view::npos) {
    const std::string digits(text.substr(colon + 1));
    char* stop = nullptr;
    index = std::strtol(digits.c_str(), &stop, 10);
    if (digits.empty() || digits.size() > 3 || *stop || index < 0 || index > 127) return false;
  }
  *device = static_cast<int64_t>(type) << 32 | (index & 0xffffffff);
  return true;
}

}  // namespace anyop::aten

int32_t AnyopAtenOpen(const char* path, const char* glue) {
  return anyop::Guarded([&] { return anyop::aten::Open(path, glue); });
}
