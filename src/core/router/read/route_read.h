// SPDX-License-Identifier: Apache-2.0
// Reads one route file as it lies on the disk.
#pragma once

#include <cstdint>
#include <string>

namespace anyop {

struct FileText {
  std::string text;
  uint64_t device = 0, inode = 0;  // two paths of the same file have the same
};

// Regular files of at most kMaxRouteFileBytes; on anything else false, and *error says "found ...,
// expected ..." without the path. Never waits for another process.
bool ReadFileText(const std::string& path, FileText* file, std::string* error);

}  // namespace anyop
