// SPDX-License-Identifier: Apache-2.0
// A libOpenCL over the one that is there, which breaks on demand. ANYOP_FALSE has words: double=0
// (no float64), largest=BYTES (a buffer), local=BYTES, memory=N (the N-th buffer finds no room),
// lost=N (from the N-th call on that a queue gets, the device is lost), poison=WORD (new buffers
// hold it, and local memory of a PoCL with one thread before each kernel). The other functions are
// those of the library that it is linked with.
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
typedef void* Handle;

enum { kHostMemory = 16, kCopyHost = 32, kLocalBytes = 1 << 17 };
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
  const long poison = Word("poison=");
  if (poison >= 0 && !host && !(flags & kHostMemory)) {
    unsigned* filled = malloc(bytes + sizeof *filled);
    for (size_t i = 0; i <= bytes / sizeof *filled; ++i) filled[i] = (unsigned)poison;
    Handle made = real(context, flags | kCopyHost, bytes, filled, code);
    free(filled);
    return made;
  }
  if (__atomic_add_fetch(&buffers, 1, __ATOMIC_RELAXED) != Word("memory="))
    return real(context, flags, bytes, host, code);
  *code = kNoRoom;
  return NULL;
}

// A kernel that fills the local memory of its thread, in front of what comes next.
static int Poison(Handle queue, unsigned word) {
  static const char* const kText =
      "__kernel void fill(__local uint* m, uint n, uint w) { for (uint i = 0; i < n; ++i) m[i] = "
      "w; }";
  static Handle kernel;
  int (*info)(Handle, unsigned, size_t, void*, size_t*);
  int (*set)(Handle, unsigned, size_t, const void*);
  int (*start)(Handle, Handle, unsigned, const size_t*, const size_t*, const size_t*, unsigned,
               const Handle*, Handle*);
  const size_t one = 1;
  const unsigned count = kLocalBytes / sizeof word;
  int code = 0;
  *(void**)&info = Real("clGetCommandQueueInfo");
  *(void**)&set = Real("clSetKernelArg");
  *(void**)&start = Real("clEnqueueNDRangeKernel");
  if (!kernel) {
    Handle context, program;
    Handle (*make)(Handle, unsigned, const char* const*, const size_t*, int*);
    int (*build)(Handle, unsigned, const Handle*, const char*, void*, void*);
    Handle (*find)(Handle, const char*, int*);
    *(void**)&make = Real("clCreateProgramWithSource");
    *(void**)&build = Real("clBuildProgram");
    *(void**)&find = Real("clCreateKernel");
    code = info(queue, 0x1090, sizeof context, &context, NULL);
    program = code ? NULL : make(context, 1, &kText, NULL, &code);
    if (!code) code = build(program, 0, NULL, "", NULL, NULL);
    if (!code) kernel = find(program, "fill", &code);
  }
  if (!code) code = set(kernel, 0, kLocalBytes, NULL);
  if (!code) code = set(kernel, 1, sizeof count, &count);
  if (!code) code = set(kernel, 2, sizeof word, &word);
  return code ? code : start(queue, kernel, 1, NULL, &one, &one, 0, NULL, NULL);
}

EXPORT int clEnqueueNDRangeKernel(Handle queue, Handle kernel, unsigned dims, const size_t* offset,
                                  const size_t* global, const size_t* local, unsigned count,
                                  const Handle* waits, Handle* event) {
  int (*real)(Handle, Handle, unsigned, const size_t*, const size_t*, const size_t*, unsigned,
              const Handle*, Handle*);
  *(void**)&real = Real("clEnqueueNDRangeKernel");
  const long poison = Word("poison=");
  const int code = Lost() ? kLost : poison >= 0 ? Poison(queue, (unsigned)poison) : 0;
  return code ? code : real(queue, kernel, dims, offset, global, local, count, waits, event);
}

// F(name, parameters, arguments): what a queue gets, and what waits for it.
#define QUEUED(F)                                                                                  \
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
