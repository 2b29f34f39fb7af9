// SPDX-License-Identifier: Apache-2.0
// cuBLASLt as open_library.h finds it: of either major version of CUDA.
#include "cublaslt.h"

#include <cstdio>

#include "open_library.h"

namespace anyop::cublaslt {
namespace {

// False, with the name, where it lacks a function.
bool FindAll(void* file, Library* library, Text* lacks) {
#define ANYOP_X(name, result, arguments) \
  if (!FindFunction(file, "cublasLt" #name, &library->name, lacks)) return false;
  ANYOP_CUBLASLT_FUNCTIONS(ANYOP_X)
#undef ANYOP_X
  return true;
}

struct CublasLt {
  using Library = cublaslt::Library;
  static constexpr char kVariable[] = "ANYOP_CUBLASLT", kExpected[] = "libcublasLt.so";
  static constexpr char kCure[] = "cuBLASLt 12.9 or newer was not found: pip install nvidia-cublas";
  static constexpr LibraryPlace kPlaces[] = {
      {"libcublasLt.so.13", "nvidia/cu13/lib/libcublasLt.so.13"},
      {"libcublasLt.so.12", "nvidia/cublas/lib/libcublasLt.so.12"},
  };

  static bool Bind(void* file, Library* library, Text* problem) {
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
};

}  // namespace

int32_t GetLibrary(AnyopCall* call, const Library** library) {
  return OpenOnce<CublasLt>(call, library);
}

}  // namespace anyop::cublaslt
