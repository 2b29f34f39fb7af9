/* SPDX-License-Identifier: Apache-2.0 */
/* A device that is good but for one function: $GOOD is the plugin behind it, $BROKEN says what is
 * wrong. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "anyop/device.h"

static const AnyopDevice* good;

static int32_t any_device(int32_t device) { return good->synchronize_device(device & 1); }
static int32_t leave_nothing(const AnyopDeviceScope* scope) { return (void)scope, 0; }
static int32_t short_copy(int32_t device, void* to, const void* from, int64_t bytes, int32_t kind) {
  return good->copy(device, to, from, bytes > 64 ? bytes - 1 : bytes, kind);
}
static int32_t all_pinned(const void* memory, int32_t* yes) { return (void)memory, *yes = 1, 0; }
static int32_t misaligned(int32_t device, int64_t bytes, void** memory) {
  const int32_t status = good->allocate(device, bytes ? bytes + 8 : 0, memory);
  if (*memory) *memory = (char*)*memory + 8;
  return status;
}
static int32_t misaligned_free(int32_t device, void* memory) {
  return good->free(device, memory ? (char*)memory - 8 : memory);
}
static int32_t swapped(int32_t device, void* stream, void (*function)(void*), void* context) {
  static __thread void (*kept)(void*);
  static __thread void* kept_context;
  if (!function || !kept) return kept = function, kept_context = context, function ? 0 : 1;
  good->launch_host(device, stream, function, context);
  function = kept;
  kept = NULL;
  return good->launch_host(device, stream, function, kept_context);
}
static int32_t waits(int32_t device, void* stream, void (*function)(void*), void* context) {
  const int32_t status = good->launch_host(device, stream, function, context);
  return status ? status : good->synchronize_stream(device, stream);
}
static int32_t on_this_thread(int32_t device, void* stream, void (*function)(void*),
                              void* context) {
  if (!function) return good->launch_host(device, stream, function, context);
  return function(context), 0;
}
static int32_t one_more(int32_t device, void* stream, void* to, int32_t value, int64_t bytes) {
  return good->set_on(device, stream, to, value, bytes > 0 ? bytes + 1 : bytes);
}
struct copy {
  void* to;
  const void* from;
  int64_t bytes;
};
static void run_copy(void* context) {
  struct copy* c = context;
  memcpy(c->to, c->from, c->bytes);
  free(c);
}
static int32_t never_waits(int32_t device, void* stream, void* to, const void* from, int64_t bytes,
                           int32_t kind) {
  struct copy* c = malloc(sizeof *c);
  (void)kind;
  *c = (struct copy){to, from, bytes};
  return good->launch_host(device, stream, run_copy, c);
}
static int32_t no_wait(int32_t device, void* stream, void* event) {
  return (void)device, (void)stream, (void)event, 0;
}
static int32_t always_done(int32_t device, void* handle, int32_t* done) {
  return (void)device, (void)handle, *done = 1, 0;
}
static int32_t seconds(int32_t device, void* begin, void* end, float* milliseconds) {
  const int32_t status = good->elapsed_ms(device, begin, end, milliseconds);
  return *milliseconds /= 1000, status;
}
static int32_t crashes(int32_t device, void** event) {
  return (void)device, (void)event, raise(SIGSEGV), 0;
}
static int32_t hangs(int32_t device, void* stream) {
  (void)device, (void)stream;
  for (;;) pause();
}
static const char* no_text(void) { return ""; }

static void change(AnyopDevice* d, const char* what) {
#define BREAK(name, ...)     \
  if (!strcmp(what, name)) { \
    __VA_ARGS__;             \
  }
  BREAK("functions", d->query_event = NULL)
  BREAK("old", d->size = offsetof(AnyopDevice, properties))
  BREAK("bad_devices", d->synchronize_device = any_device)
  BREAK("no_text", d->last_error = no_text)
  BREAK("current_device", d->leave = leave_nothing)
  BREAK("copies", d->copy = short_copy)
  BREAK("pinned_memory", d->is_host = all_pinned)
  BREAK("allocation", d->allocate = misaligned; d->free = misaligned_free)
  BREAK("order", d->launch_host = swapped)
  BREAK("independence", d->launch_host = waits)
  BREAK("host_functions", d->launch_host = on_this_thread)
  BREAK("filling", d->set_on = one_more)
  BREAK("plain_copies", d->copy_on = never_waits)
  BREAK("waiting", d->wait_event = no_wait)
  BREAK("events", d->query_event = always_done)
  BREAK("timing", d->elapsed_ms = seconds)
  BREAK("crash", d->create_event = crashes)
  BREAK("hang", d->synchronize_stream = hangs)
  BREAK("size", d->size = 40)
  BREAK("version", d->abi_version = 99)
  BREAK("unnamed", d->name = "my chip")
  BREAK("no_enter", d->enter = NULL)
  BREAK("twice", d->name = "host")
}

__attribute__((visibility("default"))) const AnyopDevice* AnyopDeviceEntry(uint32_t abi_version) {
  static AnyopDevice device;
  void* library = dlopen(getenv("GOOD"), RTLD_NOW);
  if (!library || !strcmp(getenv("BROKEN"), "null")) return NULL;
  good = ((AnyopDeviceFunction)dlsym(library, "AnyopDeviceEntry"))(abi_version);
  device = *good;
  device.name = "broken";
  change(&device, getenv("BROKEN"));
  return &device;
}
