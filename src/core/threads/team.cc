// SPDX-License-Identifier: Apache-2.0
// Finds another library's OpenMP runtime among what the process has loaded.
#include "threads/team.h"

#include <dlfcn.h>
#include <strings.h>

#include <cstdlib>
#include <new>

namespace anyop {

const Team* TeamOf(const char* library) {
  const char* policy = std::getenv("OMP_WAIT_POLICY");
  if (policy && strcasecmp(policy, "passive") == 0) return nullptr;
  void* handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  if (!handle) return nullptr;
  // In the library or what it needs: a process may have several such runtimes.
  const auto parallel = reinterpret_cast<decltype(Team::parallel)>(dlsym(handle, "GOMP_parallel"));
  const auto threads =
      reinterpret_cast<decltype(Team::max_threads)>(dlsym(handle, "omp_get_max_threads"));
  if (parallel && threads) return new (std::nothrow) Team{parallel, threads, pthread_self()};
  dlclose(handle);
  return nullptr;
}

}  // namespace anyop
