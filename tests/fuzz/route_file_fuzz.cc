// SPDX-License-Identifier: Apache-2.0
// Feeds any bytes to the reader of route files and of conditions; what it accepts is written out
// and read again, what it refuses must have a place and a readable reason. `make fuzz` builds and
// runs it.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "router/read/route_file.h"
#include "router/read/route_read.h"
#include "router/read/route_text.h"

namespace {

std::string_view g_input;

#define MUST(condition)                                                          \
  do {                                                                           \
    if (!(condition)) std::fprintf(stderr, "broken: %s\n", #condition), abort(); \
  } while (0)

const char* CompareText(anyop::Compare compare) {
  static const char* const kTexts[] = {"=", "!=", "<", "<=", ">", ">="};
  return kTexts[static_cast<int>(compare)];
}

std::string Text(const std::vector<anyop::Term>& terms) {
  std::string text;
  for (const anyop::Term& term : terms) {
    text += term.name;
    if (!term.argument.empty()) text += "(" + term.argument + ")";
    if (term.modulo) text += "%" + std::to_string(term.modulo);
    text += CompareText(term.compare);
    if (term.words.empty()) text += std::to_string(term.number);
    for (const std::string& word : term.words)
      text += word + (&word == &term.words.back() ? "" : "|");
    text += " ";
  }
  return text;
}

// Sections of their own, so that no two rules of the text are in one.
std::string Text(const anyop::RouteFile& routes) {
  std::string text;
  for (const anyop::Rule& rule : routes.rules) {
    text += rule.when.empty() ? "[always]\n" : "[when " + Text(rule.when) + "]\n";
    text += rule.pattern + "=";
    for (const std::string& backend : rule.backends)
      text += backend + (&backend == &rule.backends.back() ? "\n" : ",");
  }
  for (const std::string& name : routes.later) text += "namespace " + name + "\n";
  return text;
}

void CheckReason(const std::string& error) {
  std::string bad;
  MUST(error.size() < 4096 && error.find("found ") != error.npos);
  MUST(error.find('\n') == error.npos && anyop::RouteText(error, &bad).CheckText());
}

// A name of a file may have colons too.
bool HasPlace(const std::string& error) {
  int line = 0, column = 0;
  for (size_t i = 0; (i = error.find(':', i)) != error.npos; ++i) {
    if (std::sscanf(error.c_str() + i, ":%d:%d: ", &line, &column) == 2 && line > 0 && column > 0)
      return true;
  }
  return false;
}

void CheckRoutes(const anyop::RouteFile& routes) {
  for (const anyop::Rule& rule : routes.rules) {
    MUST(!rule.pattern.empty() && !rule.backends.empty());
    MUST(anyop::FitsPattern(rule.pattern, rule.pattern));
    MUST(rule.backends.size() == rule.backend_places.size());
    for (const anyop::Place& place : rule.backend_places) {
      MUST(place.file == rule.place.file && place.line == rule.place.line);
      MUST(place.column > rule.place.column);
    }
    MUST(rule.place.file < static_cast<int>(routes.files.size()) && rule.place.line > 0);
  }
}

void TryRoutes(std::string_view text) {
  anyop::RouteFile routes, again;
  std::string error;
  if (!anyop::ParseRoutes(text, "main", &routes, &error)) {
    MUST(HasPlace(error));
    CheckReason(error);
    return;
  }
  CheckRoutes(routes);
  const std::string written = Text(routes);
  MUST(anyop::ParseRoutes(written, "again", &again, &error));
  MUST(Text(again) == written && again.rules.size() == routes.rules.size());
}

void TryCondition(std::string_view text) {
  std::vector<anyop::Term> terms, again;
  std::string error;
  if (!anyop::ParseCondition(text, &terms, &error)) {
    MUST(error.compare(0, 7, "column ") == 0);
    return CheckReason(error);
  }
  const std::string written = Text(terms);
  MUST(anyop::ParseCondition(written, &again, &error));
  MUST(Text(again) == written);
}

}  // namespace

namespace anyop {

// In place of src/core/router/read/route_read.cc: files made of the input itself.
bool ReadFileText(const std::string& path, FileText* file, std::string* error) {
  file->inode = path.size();
  file->text = g_input.substr(path.size() > 3 ? g_input.size() / 2 : 0);
  if (path.find('x') == path.npos) return true;
  *error = "found nothing, expected a file";
  return false;
}

}  // namespace anyop

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  g_input = {reinterpret_cast<const char*>(data), bytes};
  TryRoutes(g_input);
  TryCondition(g_input);
  return 0;
}
