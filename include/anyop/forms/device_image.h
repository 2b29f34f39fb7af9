/* SPDX-License-Identifier: Apache-2.0 */
/* For generated code: a kernel in an image of a plugin's device (anyop/device.h), loaded at its
   first call for each device and kind of tensors, and started on the call's stream. C. */
#ifndef ANYOP_FORMS_DEVICE_IMAGE_H_
#define ANYOP_FORMS_DEVICE_IMAGE_H_

#include <stdlib.h>

#include "anyop/device.h"
#include "anyop/forms/cuda_image.h" /* AnyopCudaInt32, AnyopCudaElements */

/* As ANYOP_EMBED, with a name for the end of the file. */
#define ANYOP_EMBED_IMAGE(symbol, file)                                                         \
  __asm__(".pushsection .rodata\n.balign 64\n.local " #symbol "\n" #symbol ":\n.incbin \"" file \
          "\"\n.local " #symbol "_end\n" #symbol "_end:\n.byte 0\n.popsection\n");              \
  extern const unsigned char symbol[] __attribute__((visibility("hidden")));                    \
  extern const unsigned char symbol##_end[] __attribute__((visibility("hidden")))

enum {
  kAnyopImageValues = 32,
  kAnyopImageTensors = 10, /* 6 bits of a key for each */
  kAnyopImageDims = 8,
  kAnyopImagePlaces = 4,
  kAnyopImageOptions = 1024,
};

/* Where elements lie, for kernels: dimensions that are one in memory count as one. The struct of
   the same name in a `.cl` (src/device/opencl/prelude.cl). */
typedef struct AnyopLayout {
  int64_t ndim, numel;
  int64_t shape[kAnyopImageDims];
  int64_t strides[kAnyopImagePlaces][kAnyopImageDims]; /* in elements */
} AnyopLayout;

typedef struct AnyopImageKernel { /* one that is ready, on one device, for one kind of tensors */
  struct AnyopImageKernel* next;
  uint64_t key;
  int32_t device_id;
  void* kernel;
} AnyopImageKernel;

typedef struct AnyopImageOf {
  const char* device; /* the name of the device that takes it */
  const char* entry;
  AnyopDeviceImage image;
  const unsigned char* end; /* of its data */
  AnyopImageKernel* ready;
} AnyopImageOf;

typedef struct AnyopImageCall {
  AnyopDeviceLaunch launch;
  int64_t written; /* elements that the kernel must write: an empty grid writes none */
  uint64_t key;
  int32_t num_tensors, is_double;
  const char* names[kAnyopImageTensors];
  const AnyopTensor* tensors[kAnyopImageTensors];
  const void* values[kAnyopImageValues];
  uint32_t bytes[kAnyopImageValues];
} AnyopImageCall;

static inline void AnyopImageBegin(AnyopImageCall* c) {
  memset(&c->launch, 0, sizeof c->launch);
  c->launch.size = sizeof c->launch;
  c->launch.values = c->values;
  c->launch.bytes = c->bytes;
  c->written = 0;
  c->key = 0;
  c->num_tensors = c->is_double = 0;
}

static inline void AnyopImagePut(AnyopImageCall* c, const void* value, size_t bytes) {
  c->values[c->launch.num_values] = value;
  c->bytes[c->launch.num_values++] = (uint32_t)bytes;
}

static inline int32_t AnyopImageIsDouble(const AnyopTensor* tensor) {
  return tensor && AnyopDtypeOf(tensor) == kAnyopFloat64;
}

/* NULL: an optional tensor that is absent. */
static inline void AnyopImageTensor(AnyopImageCall* c, const char* name,
                                    const AnyopTensor* tensor) {
  static const void* const kNone = NULL;
  AnyopImagePut(c, tensor ? (const void*)&tensor->data : &kNone, 0);
  c->key = c->key << 6 | (tensor ? 1u + (unsigned)AnyopDtypeOf(tensor) : 0u);
  c->names[c->num_tensors] = name;
  c->tensors[c->num_tensors++] = tensor;
}

/* A number in the precision of the sums: call it when is_double is known. */
static inline void AnyopImageReal(AnyopImageCall* c, double value, double* wide, float* narrow) {
  *wide = value;
  *narrow = (float)value;
  AnyopImagePut(c, c->is_double ? (const void*)wide : narrow,
                c->is_double ? sizeof *wide : sizeof *narrow);
}

/* The dimensions of `count` tensors with the same sizes there, but for the last ones: `dropped` are
   left out, `kept` stand by themselves, where sizes may differ. An absent tensor has strides 0.
   Status. */
static inline int32_t AnyopImageLayout(AnyopCall* call, AnyopLayout* layout,
                                       const AnyopTensor* const* tensors, int32_t count,
                                       int32_t dropped, int32_t kept) {
  const AnyopTensor* first = tensors[0];
  int32_t n = 0;
  memset(layout, 0, sizeof *layout);
  layout->numel = 1;
  for (int32_t d = 0; d < first->ndim - dropped; ++d) {
    const int64_t size = first->shape[d];
    const int stays = d >= first->ndim - kept;
    layout->numel *= size;
    if (size == 1 && !stays) continue;
    int joins = n > 0 && !stays;
    for (int32_t t = 0; joins && t < count; ++t)
      joins = !tensors[t] || layout->strides[t][n - 1] == size * tensors[t]->strides[d];
    if (!joins && n == kAnyopImageDims)
      return call->fail(call, kAnyopNotImplemented,
                        "takes at most 8 dimensions that are not one in memory");
    n += !joins;
    layout->shape[n - 1] = joins ? layout->shape[n - 1] * size : size;
    for (int32_t t = 0; t < count; ++t)
      layout->strides[t][n - 1] = tensors[t] ? tensors[t]->strides[d] : 0;
  }
  if (n == 0) layout->shape[n++] = 1; /* one element */
  layout->ndim = n;
  return kAnyopOk;
}

/* A contiguous tensor as three dimensions: before one of its dimensions, it, behind it. */
static inline void AnyopImageSplit(AnyopLayout* layout, const AnyopTensor* tensor, int64_t dim) {
  memset(layout, 0, sizeof *layout);
  layout->ndim = 3;
  for (int i = 0; i < 3; ++i) layout->shape[i] = 1;
  if (dim < 0) dim += tensor->ndim;
  for (int32_t d = 0; d < tensor->ndim; ++d)
    layout->shape[d < dim ? 0 : d == dim ? 1 : 2] *= tensor->shape[d];
  layout->strides[0][2] = 1;
  layout->strides[0][1] = layout->shape[2];
  layout->strides[0][0] = layout->shape[1] * layout->shape[2];
  layout->numel = layout->shape[0] * layout->strides[0][0];
}

/* The core's, wherever the caller was linked. */
static inline const AnyopDevice* AnyopImageDevice(int32_t type) {
  typedef const AnyopDevice* (*Find)(int32_t);
  static Find kept;
  Find find = __atomic_load_n(&kept, __ATOMIC_ACQUIRE);
  if (!find) {
    void* core = dlopen("libanyop.so", RTLD_LAZY | RTLD_NOLOAD);
    void* found = core ? dlsym(core, "AnyopFindDevice") : NULL;
    memcpy(&find, &found, sizeof find);
    __atomic_store_n(&kept, find, __ATOMIC_RELEASE);
  }
  return find ? find(type) : NULL;
}

/* What the device's compiler is told: -Dx_t=bfloat16 -DHAS_x=1 for each tensor, -DREAL=float. */
static inline int32_t AnyopImageOptions(AnyopCall* call, const AnyopImageCall* c, char* text) {
  static const char* const kNames[] = {
      "bool",          "uint8",       "int8",    "int16",   "int32",     "int64",
      "float16",       "bfloat16",    "float32", "float64", "complex64", "complex128",
      "float8_e4m3fn", "float8_e5m2", "uint16",  "uint32",  "uint64"};
  int n = snprintf(text, kAnyopImageOptions, "-DREAL=%s -DREAL_IS_DOUBLE=%d",
                   c->is_double ? "double" : "float", c->is_double);
  for (int32_t t = 0; t < c->num_tensors; ++t) {
    const AnyopTensor* tensor = c->tensors[t];
    if (n >= kAnyopImageOptions) break;
    n += snprintf(text + n, (size_t)(kAnyopImageOptions - n), " -D%s_t=%s -DHAS_%s=%d", c->names[t],
                  tensor ? kNames[AnyopDtypeOf(tensor)] : "float32", c->names[t], tensor != NULL);
  }
  if (n < kAnyopImageOptions) return kAnyopOk;
  return call->fail(call, kAnyopInternalError, "the names of its tensors are too long");
}

static inline int32_t AnyopImageLoad(AnyopCall* call, const AnyopDevice* device, AnyopImageOf* of,
                                     const AnyopImageCall* c, void** kernel) {
  char options[kAnyopImageOptions];
  void* loaded = NULL;
  AnyopDeviceImage image = of->image;
  int32_t status = AnyopImageOptions(call, c, options);
  if (status) return status;
  image.bytes = of->end - (const unsigned char*)image.data;
  image.options = options;
  status = device->load_image(call->device_id, &image, &loaded);
  if (!status) status = device->find_kernel(call->device_id, loaded, of->entry, kernel);
  if (status) return call->fail(call, status, device->last_error());
  AnyopImageKernel* made = (AnyopImageKernel*)malloc(sizeof *made);
  if (!made) return call->fail(call, kAnyopOutOfMemory, "out of memory");
  *made = (AnyopImageKernel){__atomic_load_n(&of->ready, __ATOMIC_ACQUIRE), c->key, call->device_id,
                             *kernel};
  while (!__atomic_compare_exchange_n(&of->ready, &made->next, made, 0, __ATOMIC_ACQ_REL,
                                      __ATOMIC_ACQUIRE)) {
  }
  return kAnyopOk;
}

/* Starts the kernel on the call's stream. */
static inline int32_t AnyopImageRun(AnyopCall* call, AnyopImageOf* of, AnyopImageCall* c) {
  const AnyopDevice* device = AnyopImageDevice(call->device_type);
  char text[256];
  if (!device || strcmp(device->name, of->device) ||
      device->size < offsetof(AnyopDevice, launch_kernel) + sizeof device->launch_kernel ||
      !device->load_image || !device->find_kernel || !device->launch_kernel) {
    snprintf(text, sizeof text, "%s is for the device %s; the one in use is %s%s", of->image.name,
             of->device, device ? device->name : "none",
             device && !strcmp(device->name, of->device)
                 ? ", whose plugin is older than kernels in images"
                 : "");
    return call->fail(call, kAnyopNotImplemented, text);
  }
  for (int i = 0; i < 6; ++i) {
    const int64_t size = i < 3 ? c->launch.grid[i] : c->launch.block[i - 3];
    if (size >= (i < 3 ? 0 : 1) && size <= INT32_MAX) continue;
    snprintf(text, sizeof text, "%s.%c is %lld, expected at most %d", i < 3 ? "grid" : "block",
             "xyz"[i % 3], (long long)size, INT32_MAX);
    if (size == ANYOP_NO_SIZE)
      snprintf(text, sizeof text, "%s.%c is too large, or not defined", i < 3 ? "grid" : "block",
               "xyz"[i % 3]);
    return call->fail(call, kAnyopValueError, text);
  }
  if (!c->launch.grid[0] || !c->launch.grid[1] || !c->launch.grid[2]) {
    if (c->written == 0) return kAnyopOk;
    return call->fail(call, kAnyopValueError,
                      "its grid is empty, so that nothing would write its results");
  }
  AnyopImageKernel* ready = __atomic_load_n(&of->ready, __ATOMIC_ACQUIRE);
  while (ready && (ready->key != c->key || ready->device_id != call->device_id))
    ready = ready->next;
  void* kernel = ready ? ready->kernel : NULL;
  int32_t status = ready ? kAnyopOk : AnyopImageLoad(call, device, of, c, &kernel);
  if (status) return status;
  status = device->launch_kernel(call->device_id, call->stream, kernel, &c->launch);
  return status ? call->fail(call, status, device->last_error()) : kAnyopOk;
}

#endif /* ANYOP_FORMS_DEVICE_IMAGE_H_ */
