// SPDX-License-Identifier: Apache-2.0
// Finds and opens a library that brings functions for CUDA, once for the process: the copy that the
// process has already, that of its package, the loader's, or the one that a variable names.
#pragma once

#include <atomic>
#include <cstdlib>
#include <initializer_list>
#include <new>

#include "anyop/kernel.h"
#include "find_library.h"

namespace anyop {

// A file, and where its package puts it in site-packages.
struct LibraryPlace {
  const char *file, *package;
};

// What a search has found. Of has
//   Library, what Bind fills; false, with the problem, where a file is none that serves
//   kVariable, kExpected (its value), kCure (where nothing is found), kPlaces
template <typename Of>
struct LibrarySearch {
  typename Of::Library library;
  bool found = false;
  Text problem;

  int32_t Start(AnyopCall* call) {
    const char* path = std::getenv(Of::kVariable);
    if (path && std::strcmp(path, "off") == 0) {
      Say({Of::kVariable, " is off"});
    } else if (path && *path) {
      Say({Of::kVariable, " is ", path, ", expected the path of a ", Of::kExpected, ", or off: "});
      void* file = Open(path, &problem);
      found = file && Of::Bind(file, &library, &problem);
      if (!found) return call->fail(call, kAnyopValueError, problem.c_str());
    } else {
      Say({Of::kCure, ", or set ", Of::kVariable, " to its path. Looked for "});
      found = IsInProcess() || IsInPackages() || IsInPath();
    }
    return kAnyopOk;
  }

 private:
  static void* Open(const char* path, Text* why) {
    return OpenWhole(path, RTLD_NOW | RTLD_LOCAL, why);
  }
  void Say(std::initializer_list<const char*> pieces) {
    for (const char* piece : pieces) problem.Add(piece);
  }
  // What a library lacks is said behind its name.
  bool Takes(void* file, const char* name) {
    Text why;
    if (!file) return false;
    if (Of::Bind(file, &library, &why)) return true;
    Say({name, ": ", why.c_str(), "; "});
    return false;
  }

  bool IsInProcess() {
    for (const LibraryPlace& place : Of::kPlaces)
      if (Takes(dlopen(place.file, RTLD_NOW | RTLD_NOLOAD), place.file)) return true;
    return false;
  }
  bool IsInPackages() {
    // Three folders: anyop's, that of a build, and site-packages.
    for (const LibraryPlace& place : Of::kPlaces)
      if (Takes(OpenNearby(place.package, 3, Open, &problem), place.package)) return true;
    return false;
  }
  bool IsInPath() {
    for (const LibraryPlace& place : Of::kPlaces) {
      if (Takes(Open(place.file, &problem), place.file)) return true;
      Say({"; "});
    }
    return false;
  }
};

// The library of the process, opened at the first call. kAnyopDeclined, with where it was looked
// for, where there is none that serves; ValueError where the variable names none. No lock: who
// comes second opens the same library again, and throws the result away.
template <typename Of>
int32_t OpenOnce(AnyopCall* call, const typename Of::Library** library) {
  static std::atomic<const LibrarySearch<Of>*> known{nullptr};
  const LibrarySearch<Of>* search = known.load(std::memory_order_acquire);
  if (!search) {
    auto* made = new (std::nothrow) LibrarySearch<Of>;
    if (!made) return call->fail(call, kAnyopOutOfMemory, "no memory to open a library");
    if (const int32_t status = made->Start(call)) {
      delete made;
      return status;
    }
    if (known.compare_exchange_strong(search, made)) {
      search = made;
    } else {
      delete made;
    }
  }
  *library = &search->library;
  return search->found ? kAnyopOk : call->fail(call, kAnyopDeclined, search->problem.c_str());
}

}  // namespace anyop
