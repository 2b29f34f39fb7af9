// SPDX-License-Identifier: Apache-2.0
// A libOpenCL over the one that is there, which breaks on demand. ANYOP_FALSE has words: double=0
// (no float64), largest=BYTES (a buffer), local=BYTES, memory=N (the N-th buffer finds no room),
// lost=N (from the N-th call on that a queue gets, the device is lost). The other functions are
// those of the library that it is linked with.
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
typedef void* Handle;

enum { kLost = -36, kNoRoom = -4, kDouble = 0x1032, kLargest = 0x1010, kLocal = 0x1023 };

static void* Real(const char* name) {
  void* found = dlsym(dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL), name);
  if (!found) abort();
  return found;
}

static long Word(const char* name) {  // -1: it is not there
  const char* words = getenv("ANYOP_FALSE");
  const char* at = words ? strstr(words, name) : NULL;
  return at ? atol(at + strlen(name)) : -1;
}

static int Lost(void) {
  static long calls;
  const long from = Word("lost=");
  return from >= 0 && __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED) > from;
}

EXPORT int clGetDeviceInfo(Handle device, unsigned what, size_t bytes, void* value, size_t* size) {
  int (*real)(Handle, unsigned, size_t, void*, size_t*);
  *(void**)&real = Real("clGetDeviceInfo");
  const int code = real(device, what, bytes, value, size);
  const char* name = what == kDouble ? "double=" : what == kLargest ? "largest=" : "local=";
  const int known = what == kDouble || what == kLargest || what == kLocal;
  const long word = known && value && !code ? Word(name) : -1;
  if (word >= 0) *(uint64_t*)value = (uint64_t)word;
  return code;
}

EXPORT Handle clCreateBuffer(Handle context, uint64_t flags, size_t bytes, void* host, int* code) {
  static long buffers;
  Handle (*real)(Handle, uint64_t, size_t, void*, int*);
  *(void**)&real = Real("clCreateBuffer");
  if (__atomic_add_fetch(&buffers, 1, __ATOMIC_RELAXED) != Word("memory="))
    return real(context, flags, bytes, host, code);
  *code = kNoRoom;
  return NULL;
}

// F(name, parameters, arguments): what a queue gets, and what waits for it.
#define QUEUED(F)                                                                                  \
  F(clEnqueueNDRangeKernel,                                                                        \
    (Handle q, Handle k, unsigned n, const size_t* o, const size_t* g, const size_t* l,            \
     unsigned m, const Handle* w, Handle* e),                                                      \
    (q, k, n, o, g, l, m, w, e))                                                                   \
  F(clEnqueueReadBuffer,                                                                           \
    (Handle q, Handle b, unsigned y, size_t o, size_t n, void* p, unsigned m, const Handle* w,     \
     Handle* e),                                                                                   \
    (q, b, y, o, n, p, m, w, e))                                                                   \
  F(clEnqueueWriteBuffer,                                                                          \
    (Handle q, Handle b, unsigned y, size_t o, size_t n, const void* p, unsigned m,                \
     const Handle* w, Handle* e),                                                                  \
    (q, b, y, o, n, p, m, w, e))                                                                   \
  F(clEnqueueCopyBuffer,                                                                           \
    (Handle q, Handle a, Handle b, size_t x, size_t y, size_t n, unsigned m, const Handle* w,      \
     Handle* e),                                                                                   \
    (q, a, b, x, y, n, m, w, e))                                                                   \
  F(clEnqueueFillBuffer,                                                                           \
    (Handle q, Handle b, const void* p, size_t s, size_t o, size_t n, unsigned m, const Handle* w, \
     Handle* e),                                                                                   \
    (q, b, p, s, o, n, m, w, e))                                                                   \
  F(clEnqueueMarkerWithWaitList, (Handle q, unsigned m, const Handle* w, Handle* e), (q, m, w, e)) \
  F(clEnqueueBarrierWithWaitList, (Handle q, unsigned m, const Handle* w, Handle* e),              \
    (q, m, w, e))                                                                                  \
  F(clWaitForEvents, (unsigned n, const Handle* w), (n, w))                                        \
  F(clFlush, (Handle q), (q))                                                                      \
  F(clFinish, (Handle q), (q))

#define DEFINE(name, parameters, arguments) \
  EXPORT int name parameters {              \
    int(*real) parameters;                  \
    *(void**)&real = Real(#name);           \
    return Lost() ? kLost : real arguments; \
  }
QUEUED(DEFINE)
