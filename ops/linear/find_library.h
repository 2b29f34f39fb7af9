// SPDX-License-Identifier: Apache-2.0
// Where libraries of other packages lie: beside anyop's, or where the loader looks.
#pragma once

#include <cstddef>

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

// Opens a library, or adds the reason to the text.
using OpenFile = void* (*)(const char* path, Text* problem);

// Opens folder/file in the folder that this library lies in or one of its parents, `levels` in all,
// also of the file behind a link; nullptr where it is in none.
void* OpenNearby(const char* file, int levels, OpenFile open, Text* looked);

}  // namespace anyop
