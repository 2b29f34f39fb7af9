// SPDX-License-Identifier: Apache-2.0
// What `anyop doctor` asks of every row, in a process of its own for each: whether there is such a
// runtime, and what it lacks.
#include <cstdio>
#include <exception>

#include "library.h"

namespace anyop::cuda_like {
namespace {

std::string Report(const Row& row) {
  Library library;
  const std::string problem = OpenLibrary(row, &library);
  if (library.absent) return "absent\t1\n";
  std::string text = "vendor\t" + row.vendor + "\npath\t" + library.path + "\nversion\t" +
                     std::to_string(library.version) + "\n";
  if (library.version == kFalseVersion) text += "false\t1\n";
  if (!row.toolchain.empty()) text += "toolchain\t" + row.toolchain + "\n";
  if (row.warp) text += "warp\t" + std::to_string(row.warp) + "\n";
  for (const std::string& name : library.missing) text += "missing\t" + name + "\n";
  if (!problem.empty()) return text + "problem\t" + problem + "\n";
  int count = 0;
  const Code code = library.api.GetDeviceCount(&count);
  if (code != 0 && code != kNoDevice) {
    const char* said = library.api.GetErrorString(code);
    return text + "nodevice\tits devices cannot be counted: " + (said ? said : "an unknown error") +
           " (" + std::to_string(code) + ")\n";
  }
  return text + "devices\t" + std::to_string(code ? 0 : count) + "\n";
}

}  // namespace
}  // namespace anyop::cuda_like

// Of row number `index`: its name, then lines of a key, a tab and a value. 0: there is no such row;
// -1: text is the problem with the user's file.
extern "C" __attribute__((visibility("default"))) int32_t AnyopRuntimeReport(int32_t index,
                                                                             int32_t opens,
                                                                             char* text,
                                                                             size_t capacity) {
  try {
    std::vector<anyop::cuda_like::Row> rows;
    const std::string problem = anyop::cuda_like::ReadRows(&rows);
    std::snprintf(text, capacity, "%s", problem.c_str());
    if (!problem.empty()) return -1;
    if (index < 0 || index >= static_cast<int32_t>(rows.size())) return 0;
    const anyop::cuda_like::Row& row = rows[static_cast<size_t>(index)];
    const std::string found = opens ? anyop::cuda_like::Report(row) : "";
    std::snprintf(text, capacity, "%s\n%s", row.name.c_str(), found.c_str());
    return 1;
  } catch (const std::exception& error) {
    std::snprintf(text, capacity, "%s", error.what());
    return -1;
  }
}
