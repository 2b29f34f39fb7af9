// SPDX-License-Identifier: Apache-2.0
// Nothing is opened that is cut off, of another machine, or only has the right name: a runtime is
// asked what it calls error 600.
#include "library.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "acl.h"
#include "anyop/library_file.h"
#include "cnrt.h"

namespace anyop::cuda_like {
namespace {

#ifdef __aarch64__
constexpr int kMachine = EM_AARCH64;
#else
constexpr int kMachine = EM_X86_64;
#endif

bool Has(const Texts& texts, const std::string& text) {
  return std::find(texts.begin(), texts.end(), text) != texts.end();
}

std::string Joined(const Texts& texts) {
  std::string joined;
  for (const std::string& text : texts) joined += (joined.empty() ? "" : ", ") + text;
  return joined;
}

// "$NAME/lib/x.so" with the variable's value; "" where it is not set.
std::string Expanded(const std::string& path) {
  if (path.empty() || path[0] != '$') return path;
  const size_t end = std::min(path.find('/'), path.size());
  const char* value = std::getenv(path.substr(1, end - 1).c_str());
  return value && *value ? value + path.substr(end) : "";
}

// A bare name in the folders of LD_LIBRARY_PATH as it is now; itself where none has it.
std::string InFolders(const std::string& name) {
  const char* folders = std::getenv("LD_LIBRARY_PATH");
  for (std::string rest = folders ? folders : ""; !rest.empty();) {
    const size_t end = std::min(rest.find(':'), rest.size());
    const std::string path = rest.substr(0, end) + "/" + name;
    if (end > 0 && access(path.c_str(), F_OK) == 0) return path;
    rest.erase(0, end + 1);
  }
  return name;
}

// What dlopen would say less clearly, or not survive.
std::string MachineProblem(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return "";
  Elf64_Ehdr head = {};
  const bool is_elf = pread(file, &head, sizeof head, 0) == (ssize_t)sizeof head &&
                      memcmp(head.e_ident, ELFMAG, SELFMAG) == 0;
  close(file);
  if (!is_elf || head.e_machine == kMachine) return "";
  return path + " is for another machine (ELF machine " + std::to_string(head.e_machine) +
         ", this one is " + std::to_string(kMachine) + ")";
}

// Opens one candidate. "" and no handle: it is not there.
std::string OpenOne(const std::string& candidate, void** handle, std::string* path) {
  *path = Expanded(candidate);
  if (path->empty()) return "";
  if (path->find('/') == std::string::npos) {
    *handle = dlopen(path->c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (*handle) return "";
    *path = InFolders(*path);
  }
  const bool bare = path->find('/') == std::string::npos;  // the loader's own folders have it
  if (!bare && access(path->c_str(), F_OK) != 0) return "";
  if (std::string problem = MachineProblem(*path); !problem.empty()) return problem;
  char text[1024];
  *handle = AnyopOpenLibraryFile(path->c_str(), RTLD_NOW | RTLD_LOCAL, text, sizeof text);
  if (*handle) return "";
  const std::string nowhere = *path + ": cannot open shared object file: No such file";
  return bare && std::string(text).rfind(nowhere, 0) == 0 ? "" : text;
}

// Opens the first that is there. "" and no handle: none is.
std::string OpenFirst(const Texts& candidates, void** handle, std::string* path) {
  for (const std::string& candidate : candidates) {
    if (std::string problem = OpenOne(candidate, handle, path); !problem.empty()) return problem;
    if (*handle) return "";
  }
  return "";
}

// The vendor's name of a function that is there; else those that were looked for.
void* Find(void* handle, const Row& row, const std::string& prefix, const char* ours,
           std::string* theirs) {
  const auto named = row.names.find(ours);
  const Texts names = named == row.names.end() ? Texts{ours} : named->second;
  theirs->clear();
  for (const std::string& name : names) {
    const std::string whole = prefix + name;
    if (void* found = dlsym(handle, whole.c_str())) return found;
    *theirs += (theirs->empty() ? "" : " or ") + whole;
  }
  if (names.empty()) *theirs = prefix + ours;
  return nullptr;
}

struct Search {
  const Row& row;
  const Library& library;
  Texts lacking, may_lack;
  int found = 0;

  template <typename Function>
  void Take(const char* ours, Function* function) {
    std::string theirs;
    *function = reinterpret_cast<Function>(Find(library.handle, row, row.prefix, ours, &theirs));
    found += *function != nullptr;
    if (!*function) (Has(row.missing, ours) ? may_lack : lacking).push_back(theirs);
  }
  // Where one of two is enough.
  void Forget(const char* ours) {
    std::string theirs;
    Find(library.handle, row, row.prefix, ours, &theirs);
    lacking.erase(std::remove(lacking.begin(), lacking.end(), theirs), lacking.end());
  }
};

std::string FindFunctions(const Row& row, Library* library) {
  Search search{row, *library, {}, {}};
  Api& api = library->api;
#define ANYOP_FIND(result, name, parameters, optional) search.Take(#name, &api.name);
  ANYOP_RUNTIME_FUNCTIONS(ANYOP_FIND)
#undef ANYOP_FIND
  if (api.HostAlloc) search.Forget("MallocHost");
  if (api.LaunchHostFunc) search.Forget("StreamAddCallback");
  if (!search.found)
    return library->path + " is another vendor's library: it has no function " + row.prefix +
           "Malloc, nor any other of " + row.vendor;
  Dl_info about;
  if (api.Malloc && dladdr(reinterpret_cast<void*>(api.Malloc), &about) && about.dli_fname)
    library->path = about.dli_fname;
  if (!search.lacking.empty())
    return library->path + " lacks " + Joined(search.lacking) +
           ": it is another vendor's, or of another version";
  if (!api.HostAlloc && !api.MallocHost)
    return library->path + " lacks " + row.prefix + "HostAlloc and " + row.prefix + "MallocHost";
  if (!api.LaunchHostFunc && !api.StreamAddCallback)
    return library->path + " lacks " + row.prefix + "LaunchHostFunc and " + row.prefix +
           "StreamAddCallback";
  library->missing = search.may_lack;
  return "";
}

bool EndsWith(const std::string& text, const char* end) {
  const size_t length = strlen(end);
  return text.size() >= length && text.compare(text.size() - length, length, end) == 0;
}

std::string CheckNumbers(const Row& row, Library* library) {
  const char* said = library->api.GetErrorName(kNotReady);
  if (!EndsWith(said ? said : "", "ErrorNotReady"))
    return library->path + " calls error 600 '" + (said ? said : "NULL") +
           "', expected ...ErrorNotReady: its numbers are not CUDA's, and a row cannot use it; "
           "write a plugin (docs/vendor.md)";
  if (library->api.RuntimeGetVersion && library->api.RuntimeGetVersion(&library->version))
    library->version = 0;
  if (library->version < row.oldest)
    return library->path + " is version " + std::to_string(library->version) + ", expected " +
           std::to_string(row.oldest) + " or newer";
  return "";
}

std::string With(const Row& row, const std::string& problem) {
  return row.vendor + ": " + problem + (row.mend.empty() ? "" : "; " + row.mend);
}

}  // namespace

std::string OpenLibrary(const Row& row, Library* library) {
  std::string problem = OpenFirst(row.libraries, &library->handle, &library->path);
  if (!problem.empty()) return With(row, problem);
  library->absent = !library->handle;
  if (library->absent)
    return With(row, "none of its libraries is there (" + Joined(row.libraries) + ")");
  if (row.shape == "acl") {
    problem = UseAcl(library);
  } else {
    problem = row.shape == "cnrt" ? UseCnrt(library) : FindFunctions(row, library);
  }
  if (problem.empty()) problem = CheckNumbers(row, library);
  return problem.empty() ? "" : With(row, problem);
}

std::string FindModules(const Row& row, const Library& library, ModuleApi* api) {
  if (row.shape != "cuda") return With(row, "kernels in images are not started by this plugin");
  void* handle = library.handle;
  std::string path = library.path, prefix = row.prefix;
  if (!row.module_libraries.empty()) {
    handle = nullptr;
    prefix = row.module_prefix;
    const std::string problem = OpenFirst(row.module_libraries, &handle, &path);
    if (!problem.empty()) return With(row, problem);
    if (!handle)
      return With(row, "images need one of " + Joined(row.module_libraries) + ", none is there");
  }
  Texts lacking;
  std::string theirs;
#define ANYOP_FIND(result, name, parameters, optional)                                          \
  api->name = reinterpret_cast<decltype(api->name)>(Find(handle, row, prefix, #name, &theirs)); \
  if (!api->name) lacking.push_back(theirs);
  ANYOP_MODULE_FUNCTIONS(ANYOP_FIND)
#undef ANYOP_FIND
  return lacking.empty() ? ""
                         : With(row, path + " lacks " + Joined(lacking) + ", which images need");
}

}  // namespace anyop::cuda_like
