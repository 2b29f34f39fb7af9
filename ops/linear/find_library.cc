// SPDX-License-Identifier: Apache-2.0
// Looks for a library in the folders above this one's.
#include "find_library.h"

#include <cstdlib>

#include "anyop/library_file.h"

namespace anyop {
namespace {

void* OpenAbove(const char* ours, const char* file, int levels, OpenFile open, Text* looked) {
  Text folder;
  folder.Add(ours);
  for (int level = 0; level < levels && folder.CutAtLast('/'); ++level) {
    Text path = folder;
    path.Add("/");
    path.Add(file);
    if (void* library = open(path.c_str(), looked)) return library;
    looked->Add("; ");
  }
  return nullptr;
}

}  // namespace

void Text::Add(const char* piece) {
  const size_t room = sizeof text_ - 1 - length_;
  const size_t length = strnlen(piece, room);
  std::memcpy(text_ + length_, piece, length);
  length_ += length;
  text_[length_] = 0;
}

bool Text::CutAtLast(char mark) {
  const char* at = std::strrchr(text_, mark);
  if (!at) return false;
  length_ = static_cast<size_t>(at - text_);
  text_[length_] = 0;
  return true;
}

void* OpenWhole(const char* path, int flags, Text* problem) {
  char reason[1024];
  void* library = AnyopOpenLibraryFile(path, flags, reason, sizeof reason);
  if (!library) problem->Add(reason);
  return library;
}

void* OpenNearby(const char* file, int levels, OpenFile open, Text* looked) {
  static const char here = 0;
  Dl_info info;
  if (!dladdr(&here, &info) || !info.dli_fname) return nullptr;
  void* library = OpenAbove(info.dli_fname, file, levels, open, looked);
  if (library) return library;
  char* real = realpath(info.dli_fname, nullptr);
  if (real && std::strcmp(real, info.dli_fname) != 0)
    library = OpenAbove(real, file, levels, open, looked);
  std::free(real);
  return library;
}

}  // namespace anyop
