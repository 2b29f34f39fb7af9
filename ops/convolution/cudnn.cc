// SPDX-License-Identifier: Apache-2.0
// cuDNN as ../linear/open_library.h finds it.
#include "cudnn.h"

#include <cstdio>

#include "../linear/open_library.h"

namespace anyop::cudnn {
namespace {

// False, with the name, where it lacks a function.
bool FindAll(void* file, Library* library, Text* lacks) {
#define ANYOP_X(name, result, arguments) \
  if (!FindFunction(file, "cudnn" #name, &library->name, lacks)) return false;
  ANYOP_CUDNN_FUNCTIONS(ANYOP_X)
#undef ANYOP_X
  return true;
}

struct Cudnn {
  using Library = cudnn::Library;
  static constexpr char kVariable[] = "ANYOP_CUDNN", kExpected[] = "libcudnn.so.9";
  static constexpr char kCure[] = "cuDNN 9 was not found: pip install nvidia-cudnn-cu13 (or -cu12)";
  static constexpr LibraryPlace kPlaces[] = {
      {"libcudnn.so.9", "nvidia/cudnn/lib/libcudnn.so.9"},
  };

  static bool Bind(void* file, Library* library, Text* problem) {
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
};

}  // namespace

int32_t GetLibrary(AnyopCall* call, const Library** library) {
  return OpenOnce<Cudnn>(call, library);
}

}  // namespace anyop::cudnn
