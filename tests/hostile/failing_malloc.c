// SPDX-License-Identifier: Apache-2.0
// To be preloaded: fails the k-th allocation that anyop's libraries make, by malloc or by new.
#define _GNU_SOURCE
#include <errno.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unwind.h>

void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* memory, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);

enum { kOnce = 0, kFromThenOn = 1, kMaxRanges = 256 };

// Code of anyop's libraries, and of what allocates in the name of others.
static struct {
  uintptr_t begin, end;
  int is_anyop;
} ranges[kMaxRanges];
static int num_ranges;
static unsigned long long num_libraries;  // ever loaded, when the ranges were read

// Initial-exec: else a thread's first look at them behind a dlopen may make the loader allocate,
// from glibc 2.39 on, which comes back here, and so on without an end.
#define THREAD static __thread __attribute__((tls_model("initial-exec")))
THREAD long left;  // 0: the next one fails
THREAD long seen;
THREAD int mode, armed, inside;

static int Note(struct dl_phdr_info* info, size_t size, void* context) {
  (void)size, (void)context;
  const char* slash = strrchr(info->dlpi_name, '/');
  const char* name = slash ? slash + 1 : info->dlpi_name;
  const int is_anyop = strstr(name, "anyop") || strstr(name, "_glue");
  const char* const agents[] = {"libstdc++.so", "libc.so", "libgcc_s.so", "failing_malloc"};
  int is_agent = 0;
  for (int i = 0; i < 4; ++i) is_agent |= strncmp(name, agents[i], strlen(agents[i])) == 0;
  for (int i = 0; i < info->dlpi_phnum && (is_anyop || is_agent); ++i) {
    const ElfW(Phdr)* part = &info->dlpi_phdr[i];
    if (part->p_type != PT_LOAD || !(part->p_flags & PF_X) || num_ranges == kMaxRanges) continue;
    const uintptr_t begin = info->dlpi_addr + part->p_vaddr;
    ranges[num_ranges].begin = begin;
    ranges[num_ranges].end = begin + part->p_memsz;
    ranges[num_ranges++].is_anyop = is_anyop;
  }
  return 0;
}

static int Count(struct dl_phdr_info* info, size_t size, void* count) {
  (void)size;
  *(unsigned long long*)count = info->dlpi_adds;
  return 1;
}

static void ReadRanges(void) {
  unsigned long long now = 0;
  dl_iterate_phdr(Count, &now);
  if (now == num_libraries) return;
  num_libraries = now;
  num_ranges = 0;
  dl_iterate_phdr(Note, NULL);
}

static _Unwind_Reason_Code Look(struct _Unwind_Context* context, void* found) {
  const uintptr_t at = _Unwind_GetIP(context);
  for (int i = 0; i < num_ranges; ++i) {
    if (at < ranges[i].begin || at >= ranges[i].end) continue;
    *(int*)found = ranges[i].is_anyop;
    return ranges[i].is_anyop ? _URC_END_OF_STACK : _URC_NO_REASON;
  }
  *(int*)found = 0;
  return _URC_END_OF_STACK;
}

static int Fails(void) {
  if (!armed || inside) return 0;
  inside = 1;
  int is_anyop = 0;
  ReadRanges();
  _Unwind_Backtrace(Look, &is_anyop);
  inside = 0;
  if (!is_anyop) return 0;
  ++seen;
  if (left > 0) return --left, 0;
  if (mode == kOnce) left = INT64_MAX;
  errno = ENOMEM;
  return 1;
}

// From now on in this thread: the k-th fails (1: the next), alone or with all that follow.
void FailingArm(long k, int how) {
  left = k - 1;
  seen = 0;
  mode = how;
  armed = 1;
}

// How many there were.
long FailingDisarm(void) {
  armed = 0;
  return seen;
}

void* malloc(size_t bytes) { return Fails() ? NULL : __libc_malloc(bytes); }
void* calloc(size_t count, size_t bytes) { return Fails() ? NULL : __libc_calloc(count, bytes); }
void* realloc(void* memory, size_t bytes) { return Fails() ? NULL : __libc_realloc(memory, bytes); }
void* memalign(size_t alignment, size_t bytes) {
  return Fails() ? NULL : __libc_memalign(alignment, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }
int posix_memalign(void** memory, size_t alignment, size_t bytes) {
  *memory = memalign(alignment, bytes);
  return *memory ? 0 : ENOMEM;
}
