// SPDX-License-Identifier: Apache-2.0
// Finds and opens cuDNN: the copy that the process has already, that of the package nvidia-cudnn,
// or the one that ANYOP_CUDNN names.
#include "cudnn.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <new>

#include "../linear/find_library.h"

namespace anyop::cudnn {
namespace {

constexpr char kFile[] = "libcudnn.so.9", kInPackages[] = "nvidia/cudnn/lib/libcudnn.so.9";

void* Open(const char* path, Text* problem) {
  return OpenWhole(path, RTLD_NOW | RTLD_LOCAL, problem);
}

// False, with the name, where it lacks a function.
bool FindAll(void* file, Library* library, Text* lacks) {
#define ANYOP_X(name, result, arguments) \
  if (!FindFunction(file, "cudnn" #name, &library->name, lacks)) return false;
  ANYOP_CUDNN_FUNCTIONS(ANYOP_X)
#undef ANYOP_X
  return true;
}

// False, with the problem, where this is no cuDNN that is new enough.
bool Bind(void* file, Library* library, Text* problem) {
  if (!FindFunction(file, "cudnnGetVersion", &library->GetVersion, problem)) return false;
  const size_t version = library->GetVersion(), major = version < 10000 ? 1000 : 10000;
  Text lacks;
  if (version >= kMinimumVersion && FindAll(file, library, &lacks)) return true;
  char text[100];
  std::snprintf(text, sizeof text, "it is version %zu.%zu, and 9.0 or newer is needed%s",
                version / major, version % major / 100, *lacks.c_str() ? ": " : "");
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
    for (const char* piece :
         {"ANYOP_CUDNN is ", path, ", expected the path of a libcudnn.so.9, or off: "})
      problem.Add(piece);
    void* file = Open(path, &problem);
    found = file && Bind(file, &library, &problem);
  }

  void Look() {
    problem.Add(
        "cuDNN 9 was not found: pip install nvidia-cudnn-cu13 (or -cu12), or set ANYOP_CUDNN to "
        "its path. Looked for ");
    found = Takes(dlopen(kFile, RTLD_NOW | RTLD_NOLOAD), kFile) ||
            // Three folders: anyop's, that of a build, and site-packages.
            Takes(OpenNearby(kInPackages, 3, Open, &problem), kInPackages) ||
            Takes(Open(kFile, &problem), kFile);
  }

 private:
  bool Takes(void* file, const char* name) {
    Text why;
    if (!file) return false;
    if (Bind(file, &library, &why)) return true;
    for (const char* piece : {name, ": ", why.c_str(), "; "}) problem.Add(piece);
    return false;
  }
};

int32_t Start(AnyopCall* call, Search* search) {
  const char* path = std::getenv("ANYOP_CUDNN");
  if (path && std::strcmp(path, "off") == 0) {
    search->problem.Add("ANYOP_CUDNN is off");
  } else if (path && *path) {
    search->Name(path);
    if (!search->found) return call->fail(call, kAnyopValueError, search->problem.c_str());
  } else {
    search->Look();
  }
  return kAnyopOk;
}

}  // namespace

// No lock, as for cuBLASLt: who comes second opens the same library again, and throws the result
// away.
int32_t GetLibrary(AnyopCall* call, const Library** library) {
  static std::atomic<const Search*> known{nullptr};
  const Search* search = known.load(std::memory_order_acquire);
  if (!search) {
    auto* made = new (std::nothrow) Search;
    if (!made) return call->fail(call, kAnyopOutOfMemory, "no memory to open cuDNN");
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

}  // namespace anyop::cudnn
