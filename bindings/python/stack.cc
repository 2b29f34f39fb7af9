// SPDX-License-Identifier: Apache-2.0
// What is left of a thread's stack: its bounds are asked once, of the C library.
#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "module.h"

namespace anyop {
namespace {

// For a level and what runs in the last one, of a stack that is much larger; a sanitizer lays
// guards around what lies on the stack.
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kReserve = 1 << 20, kShare = 2;
#else
constexpr size_t kReserve = 256 << 10, kShare = 4;
#endif

// The lowest address at which a call may begin; 0 where the bounds are not known.
uintptr_t FindLowest() {
  // By name: the linker would ask for the newest version of these.
  const auto get = reinterpret_cast<int (*)(pthread_t, pthread_attr_t*)>(
      dlsym(RTLD_DEFAULT, "pthread_getattr_np"));
  const auto read = reinterpret_cast<int (*)(const pthread_attr_t*, void**, size_t*)>(
      dlsym(RTLD_DEFAULT, "pthread_attr_getstack"));
  pthread_attr_t attributes;
  if (!get || !read || get(pthread_self(), &attributes)) return 0;
  void* begin = nullptr;
  size_t bytes = 0;
  const int failed = read(&attributes, &begin, &bytes);
  pthread_attr_destroy(&attributes);
  if (failed) return 0;
  return reinterpret_cast<uintptr_t>(begin) + std::min(kReserve, bytes / kShare);
}

}  // namespace

bool HasStack() {
  static thread_local const uintptr_t lowest = FindLowest();
  if (reinterpret_cast<uintptr_t>(__builtin_frame_address(0)) > lowest) return true;
  return Raise(PyExc_RecursionError,
               "an operator's arguments or kernels call operators too deeply for the stack of "
               "this thread");
}

}  // namespace anyop
