// SPDX-License-Identifier: Apache-2.0
// Finds and opens OpenBLAS without letting it start threads of its own.
//
// OpenBLAS makes its threads when it is loaded, one for each CPU that the loading thread may use,
// so this thread is bound to one CPU for that moment: no environment variable is touched, no other
// thread notices. A copy that somebody else has opened before (NumPy's has another path) keeps its
// settings.
#include "blas.h"

#include <dlfcn.h>
#include <sched.h>
#include <strings.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <new>

#include "anyop/library_file.h"
#include "find_library.h"

namespace anyop {
namespace {

constexpr char kFile[] = "libscipy_openblas64_.so";
constexpr char kBeside[] = "scipy_openblas64/lib/libscipy_openblas64_.so";

// Binds the calling thread to the CPU that it runs on, for as long as this lives.
class OneCpu {
 public:
  OneCpu() {
    const int cpu = sched_getcpu();
    if (cpu < 0 || cpu >= kMaxCpus || sched_getaffinity(0, sizeof before_, Set(before_)) != 0)
      return;
    unsigned long one[kWords] = {};
    CPU_SET_S(static_cast<size_t>(cpu), sizeof one, Set(one));
    bound_ = sched_setaffinity(0, sizeof one, Set(one)) == 0;
  }
  OneCpu(const OneCpu&) = delete;
  OneCpu& operator=(const OneCpu&) = delete;
  ~OneCpu() {
    if (bound_) sched_setaffinity(0, sizeof before_, Set(before_));
  }

 private:
  static constexpr int kMaxCpus = 16384;
  static constexpr int kWords = kMaxCpus / (8 * sizeof(unsigned long));
  static cpu_set_t* Set(unsigned long* words) { return reinterpret_cast<cpu_set_t*>(words); }

  unsigned long before_[kWords] = {};
  bool bound_ = false;
};

template <typename Function>
bool Find(void* library, const char* name, Function* function) {
  char full[64];
  for (const char* prefix : {"scipy_", ""}) {
    std::snprintf(full, sizeof full, "%s%s64_", prefix, name);
    if (void* address = dlsym(library, full)) {
      // NOLINTNEXTLINE(bugprone-bitwise-pointer-cast): dlsym's data pointer is a function
      std::memcpy(function, &address, sizeof address);
      return true;
    }
  }
  return false;
}

void* OpenQuietly(const char* path, Text* problem) {
  if (void* theirs = dlopen(path, RTLD_NOW | RTLD_NOLOAD)) return theirs;
  const OneCpu one_cpu;
  char reason[1024];
  void* ours = AnyopOpenLibraryFile(path, RTLD_NOW | RTLD_LOCAL, reason, sizeof reason);
  if (!ours) problem->Add(reason);
  void (*set_threads)(int) = nullptr;  // for where the thread could not be bound
  if (ours && Find(ours, "openblas_set_num_threads", &set_threads)) set_threads(1);
  return ours;
}

int32_t FailMissing(AnyopCall* call, const Text& looked) {
  Text message;
  message.Add(
      "matrix products need OpenBLAS, which was not found: pip install scipy-openblas64, or set "
      "ANYOP_BLAS to the path of an ILP64 OpenBLAS. Looked for ");
  message.Add(looked.c_str());
  return call->fail(call, kAnyopNotImplemented, message.c_str());
}

int32_t FailVariable(AnyopCall* call, const char* path, const char* reason, const char* name) {
  Text message;
  message.Add("ANYOP_BLAS is ");
  message.Add(path);
  message.Add(", expected the path of an ILP64 OpenBLAS: ");
  message.Add(reason);
  message.Add(name);
  return call->fail(call, kAnyopValueError, message.c_str());
}

int32_t Open(AnyopCall* call, void** library) {
  const char* path = std::getenv("ANYOP_BLAS");
  if (path && *path) {
    Text problem;
    *library = OpenQuietly(path, &problem);
    return *library ? kAnyopOk : FailVariable(call, path, problem.c_str(), "");
  }
  Text looked;
  // Three folders: anyop's, that of a build, and site-packages.
  *library = OpenNearby(kBeside, 3, OpenQuietly, &looked);
  if (!*library) *library = OpenQuietly(kFile, &looked);
  if (*library) return kAnyopOk;
  return FailMissing(call, looked);
}

int32_t Load(AnyopCall* call, Blas* blas) {
  void* library = nullptr;
  if (const int32_t status = Open(call, &library)) return status;
  const char* lacks = blas->Bind(library);
  if (!lacks) return kAnyopOk;
  const char* path = std::getenv("ANYOP_BLAS");
  return FailVariable(call, path ? path : "(not set)", "the library found has no function ", lacks);
}

}  // namespace

const char* Blas::Bind(void* library) {
  if (!Find(library, "cblas_sgemm", &sgemm_)) return "scipy_cblas_sgemm64_";
  if (!Find(library, "cblas_dgemm", &dgemm_)) return "scipy_cblas_dgemm64_";
  if (!Find(library, "cblas_sgemv", &sgemv_)) return "scipy_cblas_sgemv64_";
  if (!Find(library, "cblas_dgemv", &dgemv_)) return "scipy_cblas_dgemv64_";
  const char* (*get_core)() = nullptr;
  const char* core = Find(library, "openblas_get_corename", &get_core) ? get_core() : "";
  for (const char* name : {"SkylakeX", "Cooperlake", "SapphireRapids"})
    small_in_place_ = small_in_place_ || strcasecmp(core, name) == 0;
  return nullptr;
}

// No lock, so that a fork at any moment leaves none held: who comes second opens the same library
// again, which costs nothing, and throws the result away.
int32_t GetBlas(AnyopCall* call, const Blas** blas) {
  static std::atomic<const Blas*> loaded{nullptr};
  *blas = loaded.load(std::memory_order_acquire);
  if (*blas) return kAnyopOk;
  Blas* made = new (std::nothrow) Blas;
  if (!made) return call->fail(call, kAnyopOutOfMemory, "no memory to open OpenBLAS");
  if (const int32_t status = Load(call, made)) {
    delete made;
    return status;
  }
  const Blas* expected = nullptr;
  if (!loaded.compare_exchange_strong(expected, made)) {
    delete made;
    *blas = expected;
  } else {
    *blas = made;
  }
  return kAnyopOk;
}

}  // namespace anyop
