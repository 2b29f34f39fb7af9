/* SPDX-License-Identifier: Apache-2.0 */
/* For generated code: a kernel that is a function of a library of tvm-ffi. The few structs of its C
   ABI are declared here anew; the library lies beside the one that this is compiled into. C. */
#ifndef ANYOP_FORMS_TVM_FFI_MODULE_H_
#define ANYOP_FORMS_TVM_FFI_MODULE_H_

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "anyop/kernel.h"
#include "anyop/library_file.h"

/* TVMFFITypeIndex. */
enum {
  kAnyopModuleNone = 0,
  kAnyopModuleInt = 1,
  kAnyopModuleBool = 2,
  kAnyopModuleFloat = 3,
  kAnyopModuleDtype = 5,
  kAnyopModuleTensor = 7, /* DLTensor*, borrowed */
  kAnyopModuleText = 8,   /* const char*, borrowed */
  kAnyopModuleFirstObject = 64,
};

/* TVMFFIAny. */
typedef struct AnyopModuleValue {
  int32_t type;
  uint32_t zero;
  union {
    int64_t i;
    double f;
    const void* pointer;
    uint8_t dtype[8]; /* code, bits, lanes in two bytes */
  } value;
} AnyopModuleValue;
ANYOP_STATIC_ASSERT(sizeof(AnyopModuleValue) == 16 && offsetof(AnyopModuleValue, value) == 8);

/* The head of an error object: 24 bytes of every object, then its kind and its message. */
typedef struct AnyopModuleBytes {
  const char* data;
  size_t size;
} AnyopModuleBytes;
typedef struct AnyopModuleError {
  uint64_t object[3];
  AnyopModuleBytes kind;
  AnyopModuleBytes message;
} AnyopModuleError;

/* TVMFFISafeCallType. */
typedef int (*AnyopModuleFunction)(void* self, const AnyopModuleValue* args, int32_t count,
                                   AnyopModuleValue* result);

/* A function of a library; all but the texts is filled at the first call. */
typedef struct AnyopModule {
  const char* path; /* for dlopen: $ORIGIN/... */
  const char* symbol;
  AnyopModuleFunction run;
  void (*take_error)(void** error);
  int (*release)(void* object);
  int (*set_stream)(int32_t device_type, int32_t device, void* stream, void** previous);
} AnyopModule;

static inline AnyopModuleValue AnyopModuleOfInt(int32_t type, int64_t value) {
  AnyopModuleValue made = {type, 0, {0}};
  made.value.i = value;
  return made;
}

static inline AnyopModuleValue AnyopModuleOfFloat(double value) {
  AnyopModuleValue made = {kAnyopModuleFloat, 0, {0}};
  made.value.f = value;
  return made;
}

/* None for NULL. */
static inline AnyopModuleValue AnyopModuleOfPointer(int32_t type, const void* pointer) {
  AnyopModuleValue made = {pointer ? type : kAnyopModuleNone, 0, {0}};
  made.value.pointer = pointer;
  return made;
}

/* The DLDataType of an AnyopDtype. */
static inline AnyopModuleValue AnyopModuleOfDtype(int64_t dtype) {
  static const uint8_t kTypes[kAnyopNumDtypes][2] = {
      {6, 8},  {1, 8},  {0, 8},   {0, 16}, {0, 32}, {0, 64}, {2, 16}, {4, 16}, {2, 32},
      {2, 64}, {5, 64}, {5, 128}, {10, 8}, {12, 8}, {1, 16}, {1, 32}, {1, 64},
  };
  AnyopModuleValue made = {kAnyopModuleDtype, 0, {0}};
  if (dtype < 0 || dtype >= kAnyopNumDtypes) return made;
  made.value.dtype[0] = kTypes[dtype][0];
  made.value.dtype[1] = kTypes[dtype][1];
  made.value.dtype[2] = 1;
  return made;
}

/* C functions as dlsym gives them; the copy of tvm-ffi is the one that the library itself uses. */
static inline void AnyopModuleFind(void* library, const char* symbol, void* function) {
  void* found = dlsym(library, symbol);
  if (!found) { /* the library leaves it to who loads it */
    void* loaded = dlopen("libtvm_ffi.so", RTLD_NOW | RTLD_NOLOAD);
    if (loaded) found = dlsym(loaded, symbol);
  }
  memcpy(function, &found, sizeof found);
}

/* The file is looked at where the loader will find it: beside the library that this is compiled
 * into. */
static inline void* AnyopModuleLibrary(const char* path, char* problem, size_t capacity) {
  char file[4096];
  static const char here = 0;
  Dl_info info;
  const char* slash = dladdr(&here, &info) && info.dli_fname ? strrchr(info.dli_fname, '/') : NULL;
  if (slash && strncmp(path, "$ORIGIN/", 8) == 0) {
    const int n = snprintf(file, sizeof file, "%.*s/%s", (int)(slash - info.dli_fname),
                           info.dli_fname, path + 8);
    if (n < (int)sizeof file && !AnyopLibraryFileIsWhole(file, problem, capacity)) return NULL;
  }
  return AnyopOpenLibraryFile(path, RTLD_NOW | RTLD_LOCAL, problem, capacity);
}

static inline int32_t AnyopModuleOpen(AnyopCall* call, AnyopModule* module) {
  char text[1100], problem[1024];
  void* library = AnyopModuleLibrary(module->path, problem, sizeof problem);
  void* function = library ? dlsym(library, module->symbol) : NULL;
  if (library && !function) snprintf(problem, sizeof problem, "it lacks %s", module->symbol);
  if (!function) {
    snprintf(text, sizeof text, "its library cannot be used: %s", problem);
    return call->fail(call, kAnyopNotImplemented, text);
  }
  AnyopModuleFind(library, "TVMFFIErrorMoveFromRaised", &module->take_error);
  AnyopModuleFind(library, "TVMFFIObjectDecRef", &module->release);
  AnyopModuleFind(library, "TVMFFIEnvSetStream", &module->set_stream);
  if (!module->take_error || !module->release)
    return call->fail(call, kAnyopNotImplemented,
                      "its library works without libtvm_ffi, which is needed");
  AnyopModuleFunction run;
  memcpy(&run, &function, sizeof run);
  __atomic_store_n(&module->run, run, __ATOMIC_RELEASE); /* last: another thread may look */
  return kAnyopOk;
}

static inline int32_t AnyopModuleStatus(const AnyopModuleBytes* kind) {
  static const struct {
    const char* kind;
    int32_t status;
  } kKnown[] = {
      {"ValueError", kAnyopValueError},   {"IndexError", kAnyopValueError},
      {"TypeError", kAnyopTypeError},     {"NotImplementedError", kAnyopNotImplemented},
      {"MemoryError", kAnyopOutOfMemory}, {"DeviceError", kAnyopDeviceError},
  };
  for (size_t i = 0; i < sizeof kKnown / sizeof kKnown[0]; ++i) {
    const size_t size = strlen(kKnown[i].kind);
    if (size == kind->size && memcmp(kKnown[i].kind, kind->data, size) == 0)
      return kKnown[i].status;
  }
  return kAnyopInternalError;
}

/* Takes the error that the function left in its thread. */
static inline int32_t AnyopModuleFail(AnyopCall* call, const AnyopModule* module) {
  char text[1024];
  void* object = NULL;
  module->take_error(&object);
  if (!object)
    return call->fail(call, kAnyopInternalError, "its library failed without an error text");
  const AnyopModuleError* error = (const AnyopModuleError*)object;
  const int32_t status = AnyopModuleStatus(&error->kind);
  const int named = status == kAnyopInternalError; /* a kind that has no status of its own */
  snprintf(text, sizeof text, "%.*s%s%.*s", named ? (int)error->kind.size : 0, error->kind.data,
           named ? ": " : "", error->message.size < 900 ? (int)error->message.size : 900,
           error->message.data);
  module->release(object);
  return call->fail(call, status, text);
}

/* Runs the function on the call's stream. What it returns is let go of: results are arguments. */
static inline int32_t AnyopModuleRun(AnyopCall* call, AnyopModule* module,
                                     const AnyopModuleValue* args, int32_t count) {
  AnyopModuleFunction run = __atomic_load_n(&module->run, __ATOMIC_ACQUIRE);
  if (!run) {
    const int32_t status = AnyopModuleOpen(call, module);
    if (status) return status;
    run = module->run;
  }
  void* previous = NULL;
  const int on_stream = call->device_type != 1; /* kDLCPU */
  if (on_stream) {
    if (!module->set_stream)
      return call->fail(call, kAnyopNotImplemented,
                        "its tvm-ffi knows no streams; a newer one is needed");
    if (module->set_stream(call->device_type, call->device_id, call->stream, &previous))
      return AnyopModuleFail(call, module);
  }
  AnyopModuleValue result = {kAnyopModuleNone, 0, {0}};
  const int failed = run(NULL, args, count, &result);
  int32_t status = failed ? AnyopModuleFail(call, module) : kAnyopOk;
  if (!failed && result.type >= kAnyopModuleFirstObject)
    module->release((void*)(uintptr_t)result.value.i);
  if (on_stream && module->set_stream(call->device_type, call->device_id, previous, NULL) &&
      !status)
    status = AnyopModuleFail(call, module);
  return status;
}

#endif /* ANYOP_FORMS_TVM_FFI_MODULE_H_ */
