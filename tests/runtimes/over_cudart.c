// SPDX-License-Identifier: Apache-2.0
// A false runtime over the real cudart: a vendor's names are CUDA's own functions, resolved when
// they are looked up. Only the version and the device's name are its own: they say that it is
// false.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define TEXT_OF(text) #text
#define TEXT(text) TEXT_OF(text)

typedef void (*Function)(void);

static Function Below(const char* variable, const char* name, const char* other) {
  const char* path = getenv(variable);
  void* library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  Function found = NULL;
  if (library) *(void**)&found = dlsym(library, name);
  if (library && !found) *(void**)&found = dlsym(library, other);
  return found;
}

// FORWARDED lists the names that are to be there.
#define FORWARD(ours, theirs)                                             \
  static Function Resolve##ours(void) {                                   \
    return Below("ANYOP_FALSE_CUDART", "cuda" #ours, "cuda" #ours "_v2"); \
  }                                                                       \
  EXPORT void theirs(void) __attribute__((ifunc("Resolve" #ours)));
#define FORWARD_MODULE(ours, theirs)                                  \
  static Function Resolve##ours(void) {                               \
    return Below("ANYOP_FALSE_DRIVER", "cu" #ours, "cuLaunchKernel"); \
  }                                                                   \
  EXPORT void theirs(void) __attribute__((ifunc("Resolve" #ours)));
FORWARDED(FORWARD)
MODULES(FORWARD_MODULE)

EXPORT int NAME_RuntimeGetVersion(int* version) {
  *version = 0x0FA15E00;
  return 0;
}

EXPORT int NAME_GetDeviceProperties(void* properties, int device) {
  char name[256];
  const Function below =
      Below("ANYOP_FALSE_CUDART", "cudaGetDeviceProperties_v2", "cudaGetDeviceProperties");
  const int code = below ? ((int (*)(void*, int))below)(properties, device) : 999;
  snprintf(name, sizeof name, "false %s over %.200s", TEXT(VENDOR),
           code ? "nothing" : (char*)properties);
  memcpy(properties, name, sizeof name);
  return code;
}

EXPORT int NAME_DeviceGetAttribute(int* value, int attribute, int device) {
  const Function below = Below("ANYOP_FALSE_CUDART", "cudaDeviceGetAttribute", "");
  const int numbers[3] = {16, 75, 76};  // CUDA's: multiprocessors, compute capability
  for (int i = 0; i < 3; ++i) {
    const int theirs[3] = {UNITS, MAJOR, MINOR};
    if (below && attribute == theirs[i])
      return ((int (*)(int*, int, int))below)(value, numbers[i], device);
  }
  return 1;
}
