// SPDX-License-Identifier: Apache-2.0
// Opens a row's library, and says of it whether it is the vendor's and can be used.
#pragma once

#include <string>

#include "rows.h"
#include "runtime_api.h"

namespace anyop::cuda_like {

// What a false runtime (tests/runtimes) says of itself.
constexpr int kFalseVersion = 0x0FA15E00;

struct Library {
  void* handle = nullptr;
  std::string path;     // of the file
  Api api{};            // what is missing is nullptr
  Texts missing;        // the vendor's names of what is not there, though it may be
  int version = 0;      // as the vendor counts; 0: not known
  bool absent = false;  // there is no such library at all
};

// Returns the problem, naming vendor, library and cure; "" when the library can be used.
std::string OpenLibrary(const Row& row, Library* library);

// The functions of images, from the runtime or a library beside it.
std::string FindModules(const Row& row, const Library& library, ModuleApi* api);

}  // namespace anyop::cuda_like
