// SPDX-License-Identifier: Apache-2.0
// Where libraries of other packages lie: beside anyop's, or where the loader looks.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstring>

namespace anyop {

// Bounded text that says where we looked.
class Text {
 public:
  void Add(const char* piece);
  // Forgets what follows the last mark, and the mark; false when there is none.
  bool CutAtLast(char mark);
  const char* c_str() const { return text_; }

 private:
  char text_[4000] = "";
  size_t length_ = 0;
};

// dlopen of a file that is whole; nullptr, with the reason, where it cannot be opened.
void* OpenWhole(const char* path, int flags, Text* problem);

// The function of that name; false, with the reason, where the library has none.
template <typename Function>
bool FindFunction(void* library, const char* name, Function* function, Text* problem) {
  void* address = dlsym(library, name);
  // NOLINTNEXTLINE(bugprone-bitwise-pointer-cast): dlsym's data pointer is a function
  std::memcpy(function, &address, sizeof address);
  if (address) return true;
  problem->Add("it has no function ");
  problem->Add(name);
  return false;
}

// Opens a library, or adds the reason to the text.
using OpenFile = void* (*)(const char* path, Text* problem);

// Opens folder/file in the folder that this library lies in or one of its parents, `levels` in all,
// also of the file behind a link; nullptr where it is in none.
void* OpenNearby(const char* file, int levels, OpenFile open, Text* looked);

}  // namespace anyop
