// SPDX-License-Identifier: Apache-2.0
// Finds libtvm_ffi and looks up its functions: a copy that is loaded goes first, because a second
// one would abort.
#include "library.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>

#include "anyop/library_file.h"

namespace anyop::ffi {
namespace {

char problem[1024];

template <typename... Values>
const char* Problem(const char* format, Values... values) {
  std::snprintf(problem, sizeof problem, format, values...);
  return problem;
}

int NoteLoaded(dl_phdr_info* info, size_t, void* found) {
  const char* slash = std::strrchr(info->dlpi_name, '/');
  const char* name = slash ? slash + 1 : info->dlpi_name;
  if (std::strncmp(name, "libtvm_ffi.so", 13) != 0) return 0;
  *static_cast<std::string*>(found) = info->dlpi_name;
  return 1;
}

// NULL without a text where there is no path.
void* Open(const char* path, char* text, size_t capacity) {
  std::string loaded;
  dl_iterate_phdr(NoteLoaded, &loaded);
  constexpr int kMode = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
  if (!loaded.empty()) return dlopen(loaded.c_str(), kMode | RTLD_NOLOAD);
  return path && *path ? AnyopOpenLibraryFile(path, kMode, text, capacity) : nullptr;
}

// Looks functions up; the first that is missing is remembered.
class Symbols {
 public:
  explicit Symbols(void* handle) : handle_(handle) {}
  template <typename Function>
  void Find(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(handle_, name));
    if (!*function && !missing_) missing_ = name;
  }
  const char* missing() const { return missing_; }

 private:
  void* handle_;
  const char* missing_ = nullptr;
};

const char* OpenLibrary(const char* path, Library* library) {
  char reason[1024] = "";
  void* handle = Open(path, reason, sizeof reason);
  if (!handle) {
    if (!path || !*path) return "libtvm_ffi is not loaded, and no path to it is given";
    return Problem("cannot open libtvm_ffi: %s", reason);
  }
  Symbols symbols(handle);
  symbols.Find("TVMFFIGetVersion", &library->GetVersion);
  symbols.Find("TVMFFIFunctionCreate", &library->FunctionCreate);
  symbols.Find("TVMFFIFunctionSetGlobal", &library->FunctionSetGlobal);
  symbols.Find("TVMFFIFunctionGetGlobal", &library->FunctionGetGlobal);
  symbols.Find("TVMFFIFunctionCall", &library->FunctionCall);
  symbols.Find("TVMFFIErrorSetRaisedFromCStr", &library->SetError);
  symbols.Find("TVMFFIErrorMoveFromRaised", &library->TakeError);
  symbols.Find("TVMFFIObjectIncRef", &library->IncRef);
  symbols.Find("TVMFFIObjectDecRef", &library->DecRef);
  symbols.Find("TVMFFIGetTypeInfo", &library->GetTypeInfo);
  symbols.Find("TVMFFIEnvTensorAlloc", &library->TensorAlloc);
  symbols.Find("TVMFFITensorFromDLPackVersioned", &library->TensorFromDLPack);
  symbols.Find("TVMFFIEnvGetStream", &library->GetStream);
  symbols.Find("TVMFFIEnvSetStream", &library->SetStream);
  symbols.Find("TVMFFIEnvGetDLPackManagedTensorAllocator", &library->GetAllocator);
  symbols.Find("TVMFFIEnvSetDLPackManagedTensorAllocator", &library->SetAllocator);
  if (symbols.missing()) return Problem("libtvm_ffi lacks the function %s", symbols.missing());
  TVMFFIVersion version = {};
  library->GetVersion(&version);
  if (version.major != 0 || version.minor != 1) {  // 0.X.Y: X marks a break of the ABI
    return Problem("libtvm_ffi has version %u.%u.%u, expected 0.1", version.major, version.minor,
                   version.patch);
  }
  const TVMFFIByteArray name = {"ffi.Array", 9};
  if (library->FunctionGetGlobal(&name, &library->make_array) || !library->make_array) {
    return "libtvm_ffi lacks the global function ffi.Array";
  }
  return nullptr;
}

}  // namespace

const Library* OpenedLibrary(const char* path, const char** problem) {
  static std::mutex mutex;
  static Library library;
  static bool done = false;
  std::lock_guard<std::mutex> lock(mutex);
  if (!done) *problem = OpenLibrary(path, &library);
  done = done || !*problem;
  return done ? &library : nullptr;
}

}  // namespace anyop::ffi
