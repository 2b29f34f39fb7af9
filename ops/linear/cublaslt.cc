// SPDX-License-Identifier: Apache-2.0
// Finds and opens cuBLASLt: the copy that the process has already, that of the package
// nvidia-cublas, or the one that ANYOP_CUBLASLT names.
#include "cublaslt.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <new>

#include "find_library.h"

namespace anyop::cublaslt {
namespace {

// Of either major version of CUDA: the file, and where its package puts it in site-packages.
struct Place {
  const char *file, *package;
};
constexpr Place kPlaces[] = {
    {"libcublasLt.so.13", "nvidia/cu13/lib/libcublasLt.so.13"},
    {"libcublasLt.so.12", "nvidia/cublas/lib/libcublasLt.so.12"},
};

void* Open(const char* path, Text* problem) {
  return OpenWhole(path, RTLD_NOW | RTLD_LOCAL, problem);
}

// False, with the name, where it lacks a function.
bool FindAll(void* file, Library* library, Text* lacks) {
#define ANYOP_X(name, result, arguments) \
  if (!FindFunction(file, "cublasLt" #name, &library->name, lacks)) return false;
  ANYOP_CUBLASLT_FUNCTIONS(ANYOP_X)
#undef ANYOP_X
  return true;
}

// False, with the problem, where this is no cuBLASLt that is new enough.
bool Bind(void* file, Library* library, Text* problem) {
  if (!FindFunction(file, "cublasLtGetVersion", &library->GetVersion, problem)) return false;
  const size_t version = library->GetVersion();
  Text lacks;
  if (version >= kMinimumVersion && FindAll(file, library, &lacks)) return true;
  char text[100];
  std::snprintf(text, sizeof text, "it is version %zu.%zu, and 12.9 or newer is needed%s",
                version / 10000, version % 10000 / 100, *lacks.c_str() ? ": " : "");
  problem->Add(text);
  problem->Add(lacks.c_str());
  return false;
}

// What a search has found; kept for the life of the process.
struct Search {
  Library library;
  bool found = false;
  Text problem;

  void Name(const char* path) {
    problem.Add("ANYOP_CUBLASLT is ");
    problem.Add(path);
    problem.Add(", expected the path of a libcublasLt.so, or off: ");
    void* file = Open(path, &problem);
    found = file && Bind(file, &library, &problem);
  }

  void Look() {
    problem.Add(
        "cuBLASLt 12.9 or newer was not found: pip install nvidia-cublas, or set ANYOP_CUBLASLT to "
        "its path. Looked for ");
    found = LookInProcess() || LookInPackages() || LookInPath();
  }

 private:
  // The file, or nullptr; what a library lacks is said behind its name.
  bool Takes(void* file, const char* name) {
    Text why;
    if (!file) return false;
    if (Bind(file, &library, &why)) return true;
    for (const char* piece : {name, ": ", why.c_str(), "; "}) problem.Add(piece);
    return false;
  }

  bool LookInProcess() {
    for (const Place& place : kPlaces)
      if (Takes(dlopen(place.file, RTLD_NOW | RTLD_NOLOAD), place.file)) return true;
    return false;
  }
  bool LookInPackages() {
    // Three folders: anyop's, that of a build, and site-packages.
    for (const Place& place : kPlaces)
      if (Takes(OpenNearby(place.package, 3, Open, &problem), place.package)) return true;
    return false;
  }
  bool LookInPath() {
    for (const Place& place : kPlaces) {
      if (Takes(Open(place.file, &problem), place.file)) return true;
      problem.Add("; ");
    }
    return false;
  }
};

int32_t Start(AnyopCall* call, Search* search) {
  const char* path = std::getenv("ANYOP_CUBLASLT");
  if (path && std::strcmp(path, "off") == 0) {
    search->problem.Add("ANYOP_CUBLASLT is off");
  } else if (path && *path) {
    search->Name(path);
    if (!search->found) return call->fail(call, kAnyopValueError, search->problem.c_str());
  } else {
    search->Look();
  }
  return kAnyopOk;
}

}  // namespace

// No lock, as for OpenBLAS: who comes second opens the same library again, and throws the result
// away.
int32_t GetLibrary(AnyopCall* call, const Library** library) {
  static std::atomic<const Search*> known{nullptr};
  const Search* search = known.load(std::memory_order_acquire);
  if (!search) {
    auto* made = new (std::nothrow) Search;
    if (!made) return call->fail(call, kAnyopOutOfMemory, "no memory to open cuBLASLt");
    if (const int32_t status = Start(call, made)) {
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

}  // namespace anyop::cublaslt
