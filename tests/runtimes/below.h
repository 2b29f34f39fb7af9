// SPDX-License-Identifier: Apache-2.0
// What false runtimes share: anyop's device `host` below them, and the words of ANYOP_FALSE.
#ifndef ANYOP_TESTS_RUNTIMES_BELOW_H_
#define ANYOP_TESTS_RUNTIMES_BELOW_H_

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "anyop/device.h"

#define EXPORT __attribute__((visibility("default")))

static const AnyopDevice* host;

// The number behind a word of ANYOP_FALSE, such as memory=4096; otherwise where it is not there.
static long Word(const char* word, long otherwise) {
  const char* text = getenv("ANYOP_FALSE");
  const char* at = text ? strstr(text, word) : NULL;
  return at && at[strlen(word)] == '=' ? atol(at + strlen(word) + 1) : otherwise;
}

static long fails_at, calls;
static char failing[64];

__attribute__((constructor)) static void Start(void) {
  const AnyopDevice* (*find)(const char*);
  const char* path = getenv("ANYOP_FALSE_BELOW");
  void* library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  *(void**)&find = library ? dlsym(library, "AnyopFindDeviceByName") : NULL;
  host = find ? find("host") : NULL;
  if (!host) {
    fputs("false runtime: ANYOP_FALSE_BELOW names no libanyop.so\n", stderr);
    abort();
  }
  const char* text = getenv("ANYOP_FALSE");  // fail=Malloc:3 fails the third call of Malloc
  const char* at = text ? strstr(text, "fail=") : NULL;
  if (at) sscanf(at, "fail=%63[A-Za-z_0-9]:%ld", failing, &fails_at);
}

// Whether this call of a function is the one that is to fail.
static int Fails(const char* function) {
  return strcmp(failing, function) == 0 &&
         __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED) == fails_at;
}

static int Fits(size_t bytes) {  // memory=4096: what one allocation may have
  return bytes <= (size_t)Word("memory", 1L << 40);
}

// A copy that reads and writes plain memory when the stream comes to it.
struct Late {
  void* to;
  const void* from;
  size_t bytes;
};

static void CopyLate(void* context) {
  struct Late* late = context;
  memcpy(late->to, late->from, late->bytes);
  free(late);
}

static int32_t CopyOn(int device, void* stream, void* to, const void* from, size_t bytes,
                      int kind) {
  int32_t pinned = 1;
  if (kind != 3) host->is_host(kind == 1 ? from : to, &pinned);
  if (pinned) return host->copy_on(device, stream, to, from, (int64_t)bytes, kind);
  struct Late* late = malloc(sizeof *late);
  *late = (struct Late){to, from, bytes};
  return host->launch_host(device, stream, CopyLate, late);
}

#endif  // ANYOP_TESTS_RUNTIMES_BELOW_H_
