// SPDX-License-Identifier: Apache-2.0
// Compares names: with patterns, with those most like them, with the presets'.
#include <algorithm>
#include <cstring>

#include "router/read/presets.h"
#include "router/read/route_file.h"

namespace anyop {
namespace {

constexpr size_t kMaxCompared = 64;  // longer names have no near one

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// How many characters to insert, remove, replace or swap with the next. Both are short.
int Distance(std::string_view a, std::string_view b) {
  int rows[3][kMaxCompared + 1];
  for (size_t j = 0; j <= b.size(); ++j) rows[0][j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    int *row = rows[i % 3], *above = rows[(i + 2) % 3], *two_above = rows[(i + 1) % 3];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = Lower(a[i - 1]) == Lower(b[j - 1]);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + !same});
      if (i > 1 && j > 1 && Lower(a[i - 1]) == Lower(b[j - 2]) &&
          Lower(a[i - 2]) == Lower(b[j - 1]))
        row[j] = std::min(row[j], two_above[j - 2] + 1);
    }
  }
  return rows[a.size() % 3][b.size()];
}

}  // namespace

std::string Nearest(std::string_view name, const std::vector<std::string>& known) {
  const std::string* nearest = nullptr;
  int least = 0;
  for (const std::string& other : known) {
    const size_t length = std::max(name.size(), other.size());
    if (length > kMaxCompared) continue;
    const int distance = Distance(name, other);
    // One mistake in four letters; 'gpu' is not 'cpu'.
    const int most = length < 4 ? 0 : static_cast<int>(length + 2) / 4;
    if (distance > most || (nearest && distance >= least)) continue;
    nearest = &other;
    least = distance;
  }
  return nearest ? *nearest : "";
}

bool FitsPattern(std::string_view pattern, std::string_view name) {
  size_t p = 0, n = 0, star = pattern.npos, resumed = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resumed = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p, ++n;
    } else if (star != pattern.npos) {  // the last * takes one character more
      p = star + 1;
      n = ++resumed;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == pattern.npos;
}

const char* PresetText(std::string_view name) {
  for (const Preset* preset = kPresets; preset->name; ++preset) {
    if (name == preset->name) return preset->text;
  }
  return nullptr;
}

std::vector<std::string> PresetNames() {
  std::vector<std::string> names;
  for (const Preset* preset = kPresets; preset->name; ++preset) names.push_back(preset->name);
  return names;
}

}  // namespace anyop
