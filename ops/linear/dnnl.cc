// SPDX-License-Identifier: Apache-2.0
// Finds and opens oneDNN: of the package onednn-cpu-gomp, or the libdnnl.so.3 that ANYOP_DNNL
// names.
#include "dnnl.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "dots.h"
#include "find_library.h"

namespace anyop::dnnl {
namespace {

constexpr char kFile[] = "libdnnl.so.3";
// Paddle's own copy, where there is one: a process knows a library by its name, so that a later
// `import paddle` would be given ours, and miss functions.
constexpr char kPaddles[] = "paddle/libs/libdnnl.so.3";

std::atomic<int> unforked{0};    // how many threads are in such a part
std::atomic<bool> usable{true};  // no other was when this process was forked
[[maybe_unused]] const int at_fork = pthread_atfork(nullptr, nullptr, [] {
  if (unforked.exchange(0) != 0) usable.store(false);
});

// Bound to its own dependencies first: a process may hold another OpenMP library or another oneDNN,
// whose symbols are global. Sanitizers refuse that.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kOpen = RTLD_NOW | RTLD_LOCAL;
#else
constexpr int kOpen = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
#endif

void* Open(const char* path, Text* problem) { return OpenWhole(path, kOpen, problem); }

// False, with the name, where it lacks a function.
bool FindAll(void* file, Library* library, Text* lacks) {
#define ANYOP_X(name, result, arguments) \
  if (!FindFunction(file, "dnnl_" #name, &library->name, lacks)) return false;
  ANYOP_DNNL_FUNCTIONS(ANYOP_X)
#undef ANYOP_X
  return FindFunction(file, "omp_set_num_threads", &library->set_omp_threads, lacks) &&
         FindFunction(file, "omp_get_max_threads", &library->get_omp_threads, lacks);
}

// False, with the problem, where this is no oneDNN 3 on OpenMP.
bool Bind(void* file, Library* library, Text* problem) {
  if (!FindFunction(file, "dnnl_version", &library->version, problem)) return false;
  const Version& version = *library->version();
  Text lacks;
  if (version.major != 3 || version.cpu_runtime != kOpenMp || !FindAll(file, library, &lacks)) {
    char text[160];
    std::snprintf(text, sizeof text,
                  "it is oneDNN %d.%d.%d with CPU runtime %u, and 3.2 or a newer 3 with OpenMP (2) "
                  "is needed%s",
                  version.major, version.minor, version.patch, version.cpu_runtime,
                  *lacks.c_str() ? ": " : "");
    problem->Add(text);
    problem->Add(lacks.c_str());
    return false;
  }
  if (library->engine_create(&library->engine, kCpu, 0) == kOk) return true;
  problem->Add("it makes no engine for the CPU");
  return false;
}

// What ONEDNN_MAX_CPU_ISA and the CPU allow.
bool Has(const Library& library, int isa) { return (library.get_effective_cpu_isa() & isa) == isa; }

bool IsNamed() {
  const char* path = std::getenv("ANYOP_DNNL");
  return path && *path;
}

int32_t OpenNamed(AnyopCall* call, const char* path, Library* library) {
  Text problem;
  void* file = Open(path, &problem);
  if (file && Bind(file, library, &problem)) return kAnyopOk;
  Text message;
  message.Add("ANYOP_DNNL is ");
  message.Add(path);
  message.Add(", expected the path of oneDNN's libdnnl.so.3, or off: ");
  message.Add(problem.c_str());
  return call->fail(call, kAnyopValueError, message.c_str());
}

// Whether there is one.
bool OpenFound(Library* library) {
  Text looked;
  // Three folders: anyop's, that of a build, and site-packages.
  void* file = OpenNearby(kPaddles, 3, Open, &looked);
  // Up to the environment's lib: lib/python3.11/site-packages/anyop/lib/ours.
  if (!file) file = OpenNearby(kFile, 5, Open, &looked);
  if (!file) file = Open(kFile, &looked);
  return file && Bind(file, library, &looked);
}

int32_t Load(AnyopCall* call, Library* library, bool* is_fast) {
  const char* path = std::getenv("ANYOP_DNNL");
  const Unforked critical;
  *is_fast = false;
  if (path && std::strcmp(path, "off") == 0) return kAnyopOk;
  if (path && *path) {
    if (const int32_t status = OpenNamed(call, path, library)) return status;
  } else if (!OpenFound(library)) {
    return kAnyopOk;
  }
  *is_fast = Has(*library, kAvx2);
  library->has_bfloat16 = HasBF16Dots() && Has(*library, kAvx512BF16);
  return kAnyopOk;
}

}  // namespace

Unforked::Unforked() { unforked.fetch_add(1); }
Unforked::~Unforked() { unforked.fetch_sub(1); }

// No lock, as for OpenBLAS: who comes second throws its own away.
int32_t GetLibrary(AnyopCall* call, AnyopDtype dtype, const Library** library) {
  static constexpr Library kNone;
  static std::atomic<const Library*> loaded{nullptr};
  *library = nullptr;
  if (!usable.load(std::memory_order_relaxed)) return kAnyopOk;
  const bool narrow = dtype == kAnyopBFloat16;
  static const bool may_be_narrow = HasBF16Dots() || IsNamed();
  if (narrow && !may_be_narrow) return kAnyopOk;  // opening it would be for nothing
  const Library* found = loaded.load(std::memory_order_acquire);
  if (!found) {
    auto* made = new (std::nothrow) Library;
    if (!made) return call->fail(call, kAnyopOutOfMemory, "no memory to open oneDNN");
    bool is_fast = false;
    const int32_t status = Load(call, made, &is_fast);
    if (status == kAnyopOk && loaded.compare_exchange_strong(found, is_fast ? made : &kNone))
      found = loaded.load();
    if (found != made) {
      if (made->engine) made->engine_destroy(made->engine);
      delete made;
    }
    if (status) return status;
  }
  *library = found == &kNone || (narrow && !found->has_bfloat16) ? nullptr : found;
  return kAnyopOk;
}

}  // namespace anyop::dnnl
