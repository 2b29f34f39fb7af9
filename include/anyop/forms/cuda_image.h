/* SPDX-License-Identifier: Apache-2.0 */
/* For generated code: a CUDA kernel that is there as cubin, fatbin or PTX, started by NVIDIA's
   driver. The driver is opened at run time and its few functions are declared here anew, so that no
   CUDA toolkit is needed. C. */
#ifndef ANYOP_FORMS_CUDA_IMAGE_H_
#define ANYOP_FORMS_CUDA_IMAGE_H_

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "anyop/forms/size_math.h"
#include "anyop/kernel.h"

/* Puts a file into the read-only data as `const unsigned char symbol[]`; the NUL behind it ends
 * PTX. */
#define ANYOP_EMBED(symbol, file)                                                               \
  __asm__(".pushsection .rodata\n.balign 64\n.local " #symbol "\n" #symbol ":\n.incbin \"" file \
          "\"\n.byte 0\n.popsection\n");                                                        \
  extern const unsigned char symbol[] __attribute__((visibility("hidden")))

/* CUresult, CUfunction_attribute, CUdevice_attribute: those that are used. */
enum {
  kAnyopCudaOutOfMemory = 2,
  kAnyopCudaNoBinary = 209, /* the image has nothing for this device */
  kAnyopCudaStaticShared = 1,
  kAnyopCudaMaxShared = 8,
  kAnyopCudaSharedOptin = 97,       /* bytes that a block may have when its function asks */
  kAnyopCudaSharedFree = 48 * 1024, /* without asking */
  kAnyopCudaNonPortableCluster = 14,
  kAnyopCudaPortableCluster = 8, /* blocks */
  kAnyopCudaMajor = 75,
  kAnyopCudaMinor = 76,
  kAnyopCudaRelaxed = 2, /* CU_STREAM_CAPTURE_MODE_RELAXED */
  kAnyopCudaMaxDevices = 64,
};

typedef struct AnyopCudaDriver {
  int (*init)(unsigned flags);
  int (*error_name)(int error, const char** text);
  int (*error_text)(int error, const char** text);
  int (*device)(int* device, int index);
  int (*attribute)(int* value, int attribute, int device);
  int (*retain)(void** context, int device);
  int (*current)(void** context);
  int (*push)(void* context);
  int (*pop)(void** context);
  int (*capture_mode)(int* mode);
  int (*load)(void** module, const void* image);
  int (*unload)(void* module);
  int (*function)(void** function, void* module, const char* name);
  int (*get_attribute)(int* value, int attribute, void* function);
  int (*set_attribute)(void* function, int attribute, int value);
  int (*param)(void* function, size_t index, size_t* offset,
               size_t* bytes); /* NULL before CUDA 12.4 */
  int (*launch)(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                unsigned bz, unsigned shared_bytes, void* stream, void** args, void** extra);
  int (*launch_ex)(const void* config, void* function, void** args, void** extra); /* or NULL */
} AnyopCudaDriver;

/* CUlaunchConfig and CUlaunchAttribute. */
typedef struct AnyopCudaAttribute {
  int id; /* 2 cooperative, 4 cluster's sizes, 5 how clusters are placed, 6 PDL */
  int padding;
  unsigned value[16];
} AnyopCudaAttribute;
typedef struct AnyopCudaConfig {
  unsigned grid[3], block[3], shared_bytes;
  void* stream;
  AnyopCudaAttribute* attributes;
  unsigned num_attributes;
} AnyopCudaConfig;

typedef struct AnyopCudaImage {
  const char* name; /* "scale.cubin (sm_90)" */
  const void* data;
} AnyopCudaImage;

/* What is kept of a device after the first call there. */
typedef struct AnyopCudaLoaded {
  void* context; /* the primary one */
  void* module;
  void* function;
  int max_shared; /* dynamic shared memory that the function can have, */
  int asked;      /* and whether it was asked for, or for a large cluster */
} AnyopCudaLoaded;

typedef struct AnyopCudaKernel {
  const char* entry;
  const AnyopCudaImage* images; /* the best first */
  const char* const* params;    /* as [kernels] has them */
  const uint32_t* param_bytes;
  int32_t num_images, num_params;
  AnyopCudaLoaded* loaded[kAnyopCudaMaxDevices];
} AnyopCudaKernel;

typedef struct AnyopCudaLaunch {
  int64_t grid[3], block[3], shared_bytes;
  int64_t written;    /* elements that the kernel must write: an empty grid writes none */
  int64_t cluster[3]; /* blocks; all 0: none is asked for */
  int32_t cooperative, pdl;
} AnyopCudaLaunch;

static inline int32_t AnyopCudaFail(AnyopCall* call, const AnyopCudaDriver* driver, int error,
                                    const char* doing) {
  const char *name = NULL, *reason = NULL;
  char text[512];
  driver->error_name(error, &name);
  driver->error_text(error, &reason);
  snprintf(text, sizeof text, "CUDA says \"%s\" (%s) while %s", reason ? reason : "unknown error",
           name ? name : "no name", doing);
  return call->fail(call, error == kAnyopCudaOutOfMemory ? kAnyopOutOfMemory : kAnyopDeviceError,
                    text);
}

static inline const char* AnyopCudaFind(void* library, const char* symbol, void* function) {
  void* found = dlsym(library, symbol);
  memcpy(function, &found, sizeof found);
  return found ? NULL : symbol;
}

/* NULL, or the first function that the driver lacks. */
static inline const char* AnyopCudaFindAll(void* library, AnyopCudaDriver* driver) {
  const char* missing = NULL;
  AnyopCudaFind(library, "cuFuncGetParamInfo", &driver->param);
  AnyopCudaFind(library, "cuLaunchKernelEx", &driver->launch_ex);
#define ANYOP_FIND(name, field) \
  if (!missing) missing = AnyopCudaFind(library, name, &driver->field)
  ANYOP_FIND("cuGetErrorName", error_name);
  ANYOP_FIND("cuGetErrorString", error_text);
  ANYOP_FIND("cuDeviceGet", device);
  ANYOP_FIND("cuDeviceGetAttribute", attribute);
  ANYOP_FIND("cuDevicePrimaryCtxRetain", retain);
  ANYOP_FIND("cuCtxGetCurrent", current);
  ANYOP_FIND("cuCtxPushCurrent_v2", push);
  ANYOP_FIND("cuCtxPopCurrent_v2", pop);
  ANYOP_FIND("cuThreadExchangeStreamCaptureMode", capture_mode);
  ANYOP_FIND("cuModuleLoadData", load);
  ANYOP_FIND("cuModuleUnload", unload);
  ANYOP_FIND("cuModuleGetFunction", function);
  ANYOP_FIND("cuFuncGetAttribute", get_attribute);
  ANYOP_FIND("cuFuncSetAttribute", set_attribute);
  ANYOP_FIND("cuLaunchKernel", launch);
  ANYOP_FIND("cuInit", init);
#undef ANYOP_FIND
  return missing;
}

/* The driver of this process. Threads that meet here fill in the same addresses. */
static inline int32_t AnyopCudaOpen(AnyopCall* call, AnyopCudaDriver** opened) {
  static AnyopCudaDriver driver;
  static int ready;
  *opened = &driver;
  if (__atomic_load_n(&ready, __ATOMIC_ACQUIRE)) return kAnyopOk;
  char text[512];
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  const char* reason = library ? NULL : dlerror();
  AnyopCudaDriver found;
  const char* missing = library ? AnyopCudaFindAll(library, &found) : NULL;
  if (!library || missing) {
    snprintf(text, sizeof text, "NVIDIA's driver cannot be used: %s%s",
             library  ? "libcuda.so.1 lacks the function "
             : reason ? reason
                      : "no libcuda.so.1",
             missing ? missing : "");
    return call->fail(call, kAnyopDeviceError, text);
  }
  const int error = found.init(0);
  if (error) return AnyopCudaFail(call, &found, error, "starting the driver");
  driver = found;
  __atomic_store_n(&ready, 1, __ATOMIC_RELEASE);
  return kAnyopOk;
}

/* No image fits: names the device's architecture and the images'. */
static inline int32_t AnyopCudaNoImage(AnyopCall* call, const AnyopCudaDriver* driver,
                                       const AnyopCudaKernel* kernel, int device, int error) {
  char text[1024];
  const char* reason = NULL;
  int major = 0, minor = 0;
  driver->attribute(&major, kAnyopCudaMajor, device);
  driver->attribute(&minor, kAnyopCudaMinor, device);
  driver->error_text(error, &reason);
  int n = snprintf(text, sizeof text,
                   "no image of %s for sm_%d%d, the architecture of cuda:%d; there are",
                   kernel->entry, major, minor, call->device_id);
  for (int32_t i = 0; i < kernel->num_images && n > 0 && n < (int)sizeof text; ++i)
    n += snprintf(text + n, sizeof text - (size_t)n, "%s %s", i ? "," : "", kernel->images[i].name);
  if (n > 0 && n < (int)sizeof text)
    snprintf(text + n, sizeof text - (size_t)n, " (CUDA says \"%s\")",
             reason ? reason : "unknown error");
  return call->fail(call, kAnyopNotImplemented, text);
}

/* The kernel's arguments must be those of [kernels], where the driver can tell. */
static inline int32_t AnyopCudaCheckParams(AnyopCall* call, const AnyopCudaDriver* driver,
                                           const AnyopCudaKernel* kernel, void* function) {
  char text[512];
  size_t offset, bytes;
  int32_t count = 0;
  if (!driver->param) return kAnyopOk;
  while (count < 1024 && driver->param(function, (size_t)count, &offset, &bytes) == 0) {
    if (count < kernel->num_params && bytes != kernel->param_bytes[count]) {
      snprintf(text, sizeof text, "argument %d of %s has %zu bytes, but '%s' in [kernels] has %u",
               count + 1, kernel->entry, bytes, kernel->params[count], kernel->param_bytes[count]);
      return call->fail(call, kAnyopInternalError, text);
    }
    ++count;
  }
  if (count == kernel->num_params) return kAnyopOk;
  snprintf(text, sizeof text, "%s takes %d arguments, but [kernels] lists %d", kernel->entry, count,
           kernel->num_params);
  return call->fail(call, kAnyopInternalError, text);
}

/* Loads the first image that the device takes. Its context is current. */
static inline int32_t AnyopCudaLoadImage(AnyopCall* call, const AnyopCudaDriver* driver,
                                         const AnyopCudaKernel* kernel, int device,
                                         AnyopCudaLoaded* made) {
  int mode = kAnyopCudaRelaxed,
      error = kAnyopCudaNoBinary; /* loading is allowed in a capture, too */
  driver->capture_mode(&mode);
  for (int32_t i = 0; error && error != kAnyopCudaOutOfMemory && i < kernel->num_images; ++i)
    error = driver->load(&made->module, kernel->images[i].data);
  driver->capture_mode(&mode);
  if (error == kAnyopCudaOutOfMemory)
    return AnyopCudaFail(call, driver, error, "loading its image");
  if (error) return AnyopCudaNoImage(call, driver, kernel, device, error);
  error = driver->function(&made->function, made->module, kernel->entry);
  int32_t status = error ? AnyopCudaFail(call, driver, error, "looking for its kernel in the image")
                         : AnyopCudaCheckParams(call, driver, kernel, made->function);
  if (status) driver->unload(made->module);
  int all = 0, used = 0;
  if (!status && !driver->attribute(&all, kAnyopCudaSharedOptin, device) &&
      !driver->get_attribute(&used, kAnyopCudaStaticShared, made->function))
    made->max_shared = all - used;
  return status;
}

/* Makes ready what the device of the call needs; a thread that comes second drops what it made. */
static inline int32_t AnyopCudaLoad(AnyopCall* call, const AnyopCudaDriver* driver,
                                    AnyopCudaKernel* kernel, AnyopCudaLoaded** loaded) {
  int device;
  AnyopCudaLoaded made = {NULL, NULL, NULL, 0, 0};
  int error = driver->device(&device, call->device_id);
  if (!error) error = driver->retain(&made.context, device);
  if (!error) error = driver->push(made.context);
  if (error) return AnyopCudaFail(call, driver, error, "making its device current");
  int32_t status = AnyopCudaLoadImage(call, driver, kernel, device, &made);
  AnyopCudaLoaded* kept = status ? NULL : (AnyopCudaLoaded*)malloc(sizeof made);
  if (kept) {
    *kept = made;
    *loaded = NULL;
    if (__atomic_compare_exchange_n(&kernel->loaded[call->device_id], loaded, kept, 0,
                                    __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
      *loaded = kept;
    } else {
      driver->unload(made.module);
      free(kept);
    }
  } else if (!status) {
    driver->unload(made.module);
    status = call->fail(call, kAnyopOutOfMemory, "out of memory");
  }
  void* popped;
  driver->pop(&popped);
  return status;
}

static inline int32_t AnyopCudaCheckLaunch(AnyopCall* call, const AnyopCudaLaunch* launch) {
  static const int64_t kLimits[7] = {INT32_MAX, 65535, 65535, 1024, 1024, 64, INT32_MAX};
  static const char* const kNames[7] = {"grid.x",  "grid.y",  "grid.z",      "block.x",
                                        "block.y", "block.z", "shared_bytes"};
  for (int i = 0; i < 7; ++i) {
    const int64_t value = i < 3   ? launch->grid[i]
                          : i < 6 ? launch->block[i - 3]
                                  : launch->shared_bytes;
    if (value >= (i < 3 || i == 6 ? 0 : 1) && value <= kLimits[i]) continue;
    char text[128];
    snprintf(text, sizeof text, "%s is %lld, expected at most %lld", kNames[i], (long long)value,
             (long long)kLimits[i]);
    if (value == ANYOP_NO_SIZE)
      snprintf(text, sizeof text, "%s is too large, or not defined", kNames[i]);
    return call->fail(call, kAnyopValueError, text);
  }
  return kAnyopOk;
}

/* With attributes. */
static inline int AnyopCudaStartEx(const AnyopCudaDriver* driver, void* function,
                                   const AnyopCudaLaunch* launch, void* stream, void** args) {
  AnyopCudaAttribute attributes[4];
  AnyopCudaConfig config = {{0}, {0}, (unsigned)launch->shared_bytes, stream, attributes, 0};
  memset(attributes, 0, sizeof attributes);
  for (int i = 0; i < 3; ++i) {
    config.grid[i] = (unsigned)launch->grid[i];
    config.block[i] = (unsigned)launch->block[i];
    attributes[0].value[i] = (unsigned)launch->cluster[i];
  }
  if (launch->cluster[0]) {
    attributes[0].id = 4;
    attributes[1].id = 5; /* spread over the device */
    attributes[1].value[0] = 1;
    config.num_attributes = 2;
  }
  AnyopCudaAttribute* next = attributes + config.num_attributes;
  if (launch->cooperative) *next++ = (AnyopCudaAttribute){2, 0, {1}};
  if (launch->pdl) *next++ = (AnyopCudaAttribute){6, 0, {1}};
  config.num_attributes = (unsigned)(next - attributes);
  return driver->launch_ex(&config, function, args, NULL);
}

/* What a function must be asked once: much shared memory, a cluster of more than 8 blocks. */
static inline int AnyopCudaAsk(const AnyopCudaDriver* driver, AnyopCudaLoaded* loaded,
                               int is_large) {
  int error = driver->set_attribute(loaded->function, kAnyopCudaMaxShared, loaded->max_shared);
  if (!error && is_large)
    error = driver->set_attribute(loaded->function, kAnyopCudaNonPortableCluster, 1);
  return error;
}

static inline int32_t AnyopCudaStart(AnyopCall* call, const AnyopCudaDriver* driver,
                                     AnyopCudaLoaded* loaded, const AnyopCudaLaunch* launch,
                                     void** args) {
  const int is_large =
      launch->cluster[0] * launch->cluster[1] * launch->cluster[2] > kAnyopCudaPortableCluster;
  if ((launch->shared_bytes > kAnyopCudaSharedFree || is_large) &&
      !__atomic_load_n(&loaded->asked, __ATOMIC_ACQUIRE)) {
    const int error = AnyopCudaAsk(driver, loaded, is_large);
    if (error) return AnyopCudaFail(call, driver, error, "asking for shared memory");
    __atomic_store_n(&loaded->asked, 1, __ATOMIC_RELEASE);
  }
  int error;
  if (launch->cluster[0] || launch->cooperative || launch->pdl) {
    if (!driver->launch_ex)
      return call->fail(call, kAnyopDeviceError, "NVIDIA's driver is older than CUDA 12");
    error = AnyopCudaStartEx(driver, loaded->function, launch, call->stream, args);
  } else {
    error = driver->launch(loaded->function, (unsigned)launch->grid[0], (unsigned)launch->grid[1],
                           (unsigned)launch->grid[2], (unsigned)launch->block[0],
                           (unsigned)launch->block[1], (unsigned)launch->block[2],
                           (unsigned)launch->shared_bytes, call->stream, args, NULL);
  }
  return error ? AnyopCudaFail(call, driver, error, "starting its kernel") : kAnyopOk;
}

/* In the primary context of its device, on the call's stream. */
static inline int32_t AnyopCudaStartLoaded(AnyopCall* call, const AnyopCudaDriver* driver,
                                           AnyopCudaLoaded* loaded, const AnyopCudaLaunch* launch,
                                           void** args) {
  void* current = NULL;
  const int pushed = driver->current(&current) || current != loaded->context;
  int error = pushed ? driver->push(loaded->context) : 0;
  if (error) return AnyopCudaFail(call, driver, error, "making its device current");
  int32_t status = AnyopCudaStart(call, driver, loaded, launch, args);
  if (pushed && (error = driver->pop(&current)) && !status)
    status = AnyopCudaFail(call, driver, error, "leaving its device");
  return status;
}

/* Starts the kernel on the call's stream. args: the address of every argument. */
static inline int32_t AnyopCudaRunImage(AnyopCall* call, AnyopCudaKernel* kernel,
                                        const AnyopCudaLaunch* launch, void** args) {
  AnyopCudaDriver* driver;
  int32_t status = AnyopCudaCheckLaunch(call, launch);
  if (status) return status;
  if (!launch->grid[0] || !launch->grid[1] || !launch->grid[2]) {
    if (launch->written == 0) return kAnyopOk;
    return call->fail(call, kAnyopValueError,
                      "its grid is empty, so that nothing would write its results");
  }
  if ((status = AnyopCudaOpen(call, &driver))) return status;
  if (call->device_id < 0 || call->device_id >= kAnyopCudaMaxDevices)
    return call->fail(call, kAnyopDeviceError, "its device's number is not from 0 to 63");
  AnyopCudaLoaded* loaded = __atomic_load_n(&kernel->loaded[call->device_id], __ATOMIC_ACQUIRE);
  if (!loaded && (status = AnyopCudaLoad(call, driver, kernel, &loaded))) return status;
  return AnyopCudaStartLoaded(call, driver, loaded, launch, args);
}

/* How many elements a written tensor has; NULL: none is wanted. */
static inline int64_t AnyopCudaElements(const AnyopTensor* tensor) {
  int64_t count = tensor != NULL;
  for (int32_t i = 0; count && i < tensor->ndim; ++i) count *= tensor->shape[i];
  return count;
}

/* An integer for a 32-bit argument; kAnyopOk, or the call's failure. */
static inline int32_t AnyopCudaInt32(AnyopCall* call, const char* name, int64_t value,
                                     int32_t* narrow) {
  char text[256];
  *narrow = (int32_t)value;
  if (*narrow == value) return kAnyopOk;
  snprintf(text, sizeof text, "%s is %lld, which the kernel's 32-bit argument does not hold", name,
           (long long)value);
  return call->fail(call, kAnyopValueError, text);
}

#endif /* ANYOP_FORMS_CUDA_IMAGE_H_ */
