/* SPDX-License-Identifier: Apache-2.0 */
/* For generated code: a Triton kernel that was compiled to images, one for each kind of call, found
   beside the library or made when first needed, and started by NVIDIA's driver. Neither Triton nor
   Python takes part in a call whose image is there. C, with _GNU_SOURCE. */
#ifndef ANYOP_FORMS_TRITON_IMAGE_H_
#define ANYOP_FORMS_TRITON_IMAGE_H_

#include <unistd.h>

#include "anyop/forms/cuda_image.h"
#include "anyop/forms/image_maker.h"

enum {
  kAnyopTritonFormat = 1, /* of image files: python/anyop/backend/triton_image.py */
  kAnyopTritonValues = 48,
  kAnyopTritonWords = 40,
  kAnyopTritonBuckets = 64,
  kAnyopTritonText = 640, /* a reason */
  kAnyopTritonAbsent = 255,
  kAnyopTritonContiguous = 0,
  kAnyopTritonRows = 1, /* the kernel is told the stride of its rows */
  kAnyopTritonFree = 2, /* and of all dimensions */
};

/* The head of an image file; the image follows. */
typedef struct AnyopTritonFile {
  char magic[8];     /* "ANYOPTRI" */
  uint64_t checksum; /* FNV-1a of all bytes behind it */
  uint32_t format, threads, shared_bytes, num_ctas, cooperative, pdl;
  uint32_t scratch_bytes, scratch_align; /* of each block */
  uint32_t hidden; /* pointers behind the kernel's own parameters: global, profile scratch */
  uint32_t num_params;
  uint64_t image_bytes;
  char kind[256], entry[256], triton[32];
  uint8_t param_bytes[64]; /* without the hidden ones */
} AnyopTritonFile;
ANYOP_STATIC_ASSERT(sizeof(AnyopTritonFile) == 672);

/* One kind of call on one device. */
typedef struct AnyopTritonLoaded {
  struct AnyopTritonLoaded* next;
  int64_t words[kAnyopTritonWords];
  int32_t device_id, flags;
  AnyopCudaLoaded cuda;
  AnyopTritonFile file;
  char why[kAnyopTritonText]; /* there is no image; empty: there is one */
} AnyopTritonLoaded;

typedef struct AnyopTritonKernel {
  const char* base;   /* of its images' names */
  const char* source; /* for people */
  int32_t num_tensors;
  AnyopTritonLoaded* buckets[kAnyopTritonBuckets];
} AnyopTritonKernel;

/* What one call asks: filled by the functions below, tensors and numbers in the kernel's order,
   then constants. */
typedef struct AnyopTritonLaunch {
  AnyopCudaLaunch cuda;
  int32_t num_words, num_values;
  int32_t aligned; /* 1: all that the image for 16 relies on is divisible by it; 2: all but where
                      results lie, on which sums may not depend; 0: not even that */
  int32_t wide;    /* an integer needs 64 bits */
  int64_t words[kAnyopTritonWords], storage[kAnyopTritonValues];
  void* values[kAnyopTritonValues];
} AnyopTritonLaunch;

static inline void AnyopTritonBegin(AnyopTritonLaunch* t) {
  memset(&t->cuda, 0, sizeof t->cuda);
  t->num_words = t->num_values = t->wide = 0;
  t->aligned = 1;
}

/* The call is left to the next of the route. An older core knows no such status. */
static inline int32_t AnyopTritonDecline(AnyopCall* call, const char* why) {
  return call->fail(call, call->context ? kAnyopDeclined : kAnyopNotImplemented, why);
}

static inline int64_t AnyopTritonRank(const AnyopTensor* t) { return t->ndim; }
static inline int64_t AnyopTritonNumel(const AnyopTensor* t) { return AnyopCudaElements(t); }

/* Of a dimension counted from the end where it is negative; a number is a row of one. */
static inline int64_t AnyopTritonSize(const AnyopTensor* t, int64_t d) {
  if (t->ndim == 0 && (d == 0 || d == -1)) return 1;
  if (d < 0) d += t->ndim;
  return d < 0 || d >= t->ndim ? ANYOP_NO_SIZE : t->shape[d];
}

/* The product of the sizes behind a dimension. */
static inline int64_t AnyopTritonInner(const AnyopTensor* t, int64_t d) {
  int64_t product = 1;
  if (AnyopTritonSize(t, d) == ANYOP_NO_SIZE) return ANYOP_NO_SIZE;
  for (int64_t i = (d < 0 ? d + t->ndim : d) + 1; i < t->ndim; ++i) product *= t->shape[i];
  return product;
}

static inline int64_t AnyopTritonStride(const AnyopTensor* t, int64_t d) {
  if (d < 0) d += t->ndim;
  return d < 0 || d >= t->ndim ? ANYOP_NO_SIZE : t->strides[d];
}

/* Between rows, whose elements lie side by side; ANYOP_NO_SIZE where the leading dimensions are not
 * one. */
static inline int64_t AnyopTritonRowStride(const AnyopTensor* t) {
  const int32_t last = t->ndim - 1;
  int64_t stride = 0, next = 0;
  if (last < 0) return 1;
  if (t->shape[last] != 1 && t->strides[last] != 1) return ANYOP_NO_SIZE;
  for (int32_t i = last - 1; i >= 0; --i) {
    if (t->shape[i] == 1) continue;
    if (next && t->strides[i] != next) return ANYOP_NO_SIZE;
    if (!next) stride = t->strides[i];
    next = t->strides[i] * t->shape[i];
    if (next <= 0) return ANYOP_NO_SIZE;
  }
  return next ? stride : t->shape[last];
}

static inline int AnyopTritonIsContiguous(const AnyopTensor* t) {
  int64_t expected = 1;
  for (int32_t i = t->ndim - 1; i >= 0; --i) {
    if (t->shape[i] == 0) return 1;
    if (t->shape[i] != 1 && t->strides[i] != expected) return 0;
    expected *= t->shape[i];
  }
  return 1;
}

static inline int64_t AnyopTritonIsText(const AnyopString* text, const char* word, int64_t bytes) {
  return text->data && text->count == bytes && !memcmp(text->data, word, (size_t)bytes);
}

static inline void AnyopTritonPut(AnyopTritonLaunch* t, int64_t bits) {
  t->storage[t->num_values] = bits;
  t->values[t->num_values] = &t->storage[t->num_values];
  ++t->num_values;
}

/* A tensor, or NULL: then the kernel has None in its place. aligned: whether the image for 16
   relies on its address; 2 of a result's. */
static inline int32_t AnyopTritonTensor(AnyopCall* call, AnyopTritonLaunch* t, const char* name,
                                        const AnyopTensor* tensor, int layout, int aligned) {
  if (!tensor) {
    t->words[t->num_words++] = kAnyopTritonAbsent;
    return kAnyopOk;
  }
  if ((layout == kAnyopTritonContiguous && !AnyopTritonIsContiguous(tensor)) ||
      (layout == kAnyopTritonRows && AnyopTritonRowStride(tensor) == ANYOP_NO_SIZE)) {
    char text[kAnyopTritonText];
    snprintf(text, sizeof text,
             layout ? "takes %s with leading dimensions that are one" : "takes a contiguous %s",
             name);
    return AnyopTritonDecline(call, text);
  }
  t->words[t->num_words++] = AnyopDtypeOf(tensor);
  if (aligned && (uintptr_t)tensor->data % 16) t->aligned = t->aligned && aligned == 2 ? 2 : 0;
  AnyopTritonPut(t, (int64_t)(intptr_t)tensor->data);
  return kAnyopOk;
}

static inline int32_t AnyopTritonNoSize(AnyopCall* call, const char* name) {
  char text[kAnyopTritonText];
  snprintf(text, sizeof text, "%s is too large, or not defined", name);
  return call->fail(call, kAnyopValueError, text);
}

static inline int32_t AnyopTritonInt(AnyopCall* call, AnyopTritonLaunch* t, const char* name,
                                     int64_t value, int aligned) {
  if (value == ANYOP_NO_SIZE) return AnyopTritonNoSize(call, name);
  if (value != (int32_t)value) t->wide = 1;
  if (aligned && value % 16) t->aligned = 0;
  AnyopTritonPut(t, value);
  return kAnyopOk;
}

static inline void AnyopTritonFloat(AnyopTritonLaunch* t, float value) {
  int64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  AnyopTritonPut(t, bits);
}

static inline void AnyopTritonDouble(AnyopTritonLaunch* t, double value) {
  int64_t bits;
  memcpy(&bits, &value, sizeof value);
  AnyopTritonPut(t, bits);
}

static inline int32_t AnyopTritonConstant(AnyopCall* call, AnyopTritonLaunch* t, const char* name,
                                          int64_t value) {
  if (value == ANYOP_NO_SIZE) return AnyopTritonNoSize(call, name);
  t->words[t->num_words++] = value;
  return kAnyopOk;
}

/* ---- Images ---------------------------------------------------------------------------------- */

/* "90;8,8,8;1;0;1024,2": capability; dtypes; aligned; wide; constants. 0 where it is too long. */
static inline int AnyopTritonKind(const AnyopTritonKernel* kernel, const AnyopTritonLaunch* t,
                                  int capability, char* text, size_t bytes) {
  const int32_t tensors = kernel->num_tensors;
  int n = snprintf(text, bytes, "%d;", capability);
  for (int32_t i = 0; i < t->num_words && n > 0 && n < (int)bytes; ++i) {
    if (i == tensors)
      n += snprintf(text + n, bytes - (size_t)n, ";%d;%d;%lld", t->aligned, t->wide,
                    (long long)t->words[i]);
    else
      n += snprintf(text + n, bytes - (size_t)n, "%s%lld", i ? "," : "", (long long)t->words[i]);
  }
  if (t->num_words == tensors && n > 0 && n < (int)bytes)
    n += snprintf(text + n, bytes - (size_t)n, ";%d;%d;", t->aligned, t->wide);
  return n > 0 && n < (int)bytes;
}

static inline uint64_t AnyopTritonChecksum(const unsigned char* data, size_t bytes) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (size_t i = 0; i < bytes; ++i) hash = (hash ^ data[i]) * UINT64_C(0x100000001b3);
  return hash;
}

/* The whole file, to be freed; NULL where there is none. */
static inline char* AnyopTritonRead(const char* path, size_t* bytes) {
  FILE* stream = fopen(path, "rbe");
  char* data = NULL;
  long size = -1;
  if (!stream) return NULL;
  if (!fseek(stream, 0, SEEK_END)) size = ftell(stream);
  if (size >= 0 && !fseek(stream, 0, SEEK_SET)) data = (char*)malloc((size_t)size + 1);
  *bytes = data ? fread(data, 1, (size_t)size, stream) : 0;
  fclose(stream);
  return data;
}

/* What is wrong with a file; NULL: nothing. */
static inline const char* AnyopTritonMistake(const char* data, size_t bytes, const char* kind,
                                             AnyopTritonFile* file) {
  const size_t covered = offsetof(AnyopTritonFile, checksum) + 8;
  if (bytes < sizeof *file) return "is damaged";
  if (memcmp(data, "ANYOPTRI", 8)) return "is damaged";
  memcpy(file, data, sizeof *file);
  file->triton[sizeof file->triton - 1] = 0;
  if (file->format != kAnyopTritonFormat) return "is of another version of anyop";
  if (bytes - sizeof *file != file->image_bytes ||
      AnyopTritonChecksum((const unsigned char*)data + covered, bytes - covered) != file->checksum)
    return "is damaged";
  file->kind[sizeof file->kind - 1] = file->entry[sizeof file->entry - 1] = 0;
  if (strcmp(file->kind, kind)) return "is that of another kind of call";
  return file->hidden > 2 || file->num_params > sizeof file->param_bytes ? "is damaged" : NULL;
}

/* The parameters of the kernel in the image must be those of its file. 0: they are. */
static inline int AnyopTritonDiffers(const AnyopCudaDriver* driver, const AnyopTritonFile* file,
                                     void* function) {
  size_t offset, bytes;
  const uint32_t all = file->num_params + file->hidden;
  if (!driver->param) return 0;
  for (uint32_t i = 0; i < all; ++i) {
    if (driver->param(function, i, &offset, &bytes)) return 1;
    if (bytes != (i < file->num_params ? file->param_bytes[i] : 8)) return 1;
  }
  return driver->param(function, all, &offset, &bytes) == 0;
}

/* Gives the file's image to the driver. The device's context is current. */
static inline void AnyopTritonGive(const AnyopCudaDriver* driver, int device, const char* path,
                                   const char* kind, AnyopTritonLoaded* made) {
  size_t bytes = 0;
  int mode = kAnyopCudaRelaxed, all = 0, used = 0, error = 0;
  char* data = AnyopTritonRead(path, &bytes);
  made->file.triton[0] = 0;
  const char* wrong = data ? AnyopTritonMistake(data, bytes, kind, &made->file) : "cannot be read";
  if (!wrong) {
    driver->capture_mode(&mode);
    error = driver->load(&made->cuda.module, data + sizeof made->file);
    driver->capture_mode(&mode);
    if (!error) {
      error = driver->function(&made->cuda.function, made->cuda.module, made->file.entry);
      if (!error && AnyopTritonDiffers(driver, &made->file, made->cuda.function))
        wrong = "is of another Triton: its kernel has other parameters";
      if (error || wrong) driver->unload(made->cuda.module);
    }
  }
  free(data);
  made->why[0] = 0;
  if (wrong || error) {
    const char* reason = "unknown error";
    char by[64] = "";
    if (error) driver->error_text(error, &reason);
    if (made->file.triton[0]) snprintf(by, sizeof by, " (made by Triton %.31s)", made->file.triton);
    snprintf(made->why, sizeof made->why,
             "its image %.300s %s%.80s%s%s; remove the file, or build the library anew", path,
             wrong ? wrong : "is refused by CUDA: \"", wrong ? "" : reason, wrong ? "" : "\"", by);
    return;
  }
  if (!driver->attribute(&all, kAnyopCudaSharedOptin, device) &&
      !driver->get_attribute(&used, kAnyopCudaStaticShared, made->cuda.function))
    made->cuda.max_shared = all - used;
}

/* "<folder of the library>/triton/<base>-<kind>.img"; 0 where it is too long. */
static inline int AnyopTritonBeside(const AnyopTritonKernel* kernel, const char* kind, char* path,
                                    size_t bytes) {
  Dl_info library;
  if (!dladdr((const void*)kernel, &library) || !library.dli_fname) return 0;
  const char* slash = strrchr(library.dli_fname, '/');
  const int folder = slash ? (int)(slash - library.dli_fname) + 1 : 0;
  int n = snprintf(path, bytes, "%.*striton/%s-", folder, library.dli_fname, kernel->base);
  for (; n > 0 && n + 5 < (int)bytes && *kind; ++kind)
    path[n++] = *kind == ';' ? '_' : *kind == ',' ? '.' : *kind;
  return n > 0 && n + 5 < (int)bytes && !*kind && memcpy(path + n, ".img", 5);
}

/* Finds the image of a kind or has it made; made->why says why there is none. */
static inline void AnyopTritonObtain(AnyopCall* call, const AnyopCudaDriver* driver,
                                     const AnyopTritonKernel* kernel, const AnyopTritonLaunch* t,
                                     int device, AnyopTritonLoaded* made) {
  char kind[256], path[4096], text[4096];
  const AnyopImageMaker* maker = (const AnyopImageMaker*)call->context;
  int major = 0, minor = 0;
  driver->attribute(&major, kAnyopCudaMajor, device);
  driver->attribute(&minor, kAnyopCudaMinor, device);
  const int capability = major * 10 + minor;
  if (!AnyopTritonKind(kernel, t, capability, kind, sizeof kind)) {
    snprintf(made->why, sizeof made->why, "has too many constants for %s", kernel->source);
    return;
  }
  AnyopTritonLaunch any = *t;
  any.aligned = 0;
  for (int tries = t->aligned ? 2 : 1; tries > 0; --tries) { /* the aligned one, then any */
    /* Before 9.0 an image runs on all later devices of its generation. */
    for (int at = capability; at >= (capability < 90 ? capability / 10 * 10 : capability); --at) {
      char there[256];
      if (!AnyopTritonKind(kernel, tries == 2 || !t->aligned ? t : &any, at, there, sizeof there) ||
          !AnyopTritonBeside(kernel, there, path, sizeof path) || access(path, R_OK))
        continue;
      AnyopTritonGive(driver, device, path, there, made);
      if (!made->why[0]) return;
    }
  }
  if (maker && maker->make(maker, kind, text, sizeof text) == 0)
    return AnyopTritonGive(driver, device, text, kind, made);
  if (!made->why[0])
    snprintf(made->why, sizeof made->why, "has no image for such a call: %.400s",
             maker ? text : "it needs a newer anyop");
}

static inline int32_t AnyopTritonFlags(const AnyopTritonLaunch* t) {
  return t->aligned + 4 * t->wide;
}

/* The record of a kind that is met for the first time. */
static inline AnyopTritonLoaded* AnyopTritonMake(AnyopCall* call, const AnyopCudaDriver* driver,
                                                 AnyopTritonKernel* kernel,
                                                 const AnyopTritonLaunch* t, int32_t* status) {
  int device;
  AnyopTritonLoaded* made = (AnyopTritonLoaded*)calloc(1, sizeof *made);
  *status = made ? kAnyopOk : call->fail(call, kAnyopOutOfMemory, "out of memory");
  if (!made) return NULL;
  int error = driver->device(&device, call->device_id);
  if (!error) error = driver->retain(&made->cuda.context, device);
  if (!error) error = driver->push(made->cuda.context);
  if (error) {
    *status = AnyopCudaFail(call, driver, error, "making its device current");
    free(made);
    return NULL;
  }
  AnyopTritonObtain(call, driver, kernel, t, device, made);
  void* popped;
  driver->pop(&popped);
  made->flags = AnyopTritonFlags(t);
  made->device_id = call->device_id;
  memcpy(made->words, t->words, (size_t)t->num_words * sizeof *t->words);
  return made;
}

/* The kind's record on the call's device. */
static inline AnyopTritonLoaded* AnyopTritonFind(AnyopCall* call, const AnyopCudaDriver* driver,
                                                 AnyopTritonKernel* kernel,
                                                 const AnyopTritonLaunch* t, int32_t* status) {
  const size_t bytes = (size_t)t->num_words * sizeof *t->words;
  uint64_t hash = (uint64_t)call->device_id;
  for (int32_t i = 0; i < t->num_words; ++i)
    hash = (hash ^ (uint64_t)t->words[i]) * UINT64_C(0x9e3779b97f4a7c15);
  hash ^= (uint64_t)AnyopTritonFlags(t);
  AnyopTritonLoaded** bucket = &kernel->buckets[(hash ^ hash >> 32) % kAnyopTritonBuckets];
  AnyopTritonLoaded* first = __atomic_load_n(bucket, __ATOMIC_ACQUIRE);
  for (AnyopTritonLoaded* at = first; at; at = at->next) {
    if (at->device_id == call->device_id && at->flags == AnyopTritonFlags(t) &&
        !memcmp(at->words, t->words, bytes)) /* as many as every call of the kernel has */
      return at;
  }
  AnyopTritonLoaded* made = AnyopTritonMake(call, driver, kernel, t, status);
  if (!made) return NULL;
  made->next = first; /* two threads may make the same: one of them is found first */
  while (!__atomic_compare_exchange_n(bucket, &made->next, made, 0, __ATOMIC_ACQ_REL,
                                      __ATOMIC_ACQUIRE)) {
  }
  return made;
}

/* Memory that Triton's kernel asks for itself, of all its blocks. */
static inline int32_t AnyopTritonScratch(AnyopCall* call, const AnyopTritonFile* file,
                                         AnyopTritonLaunch* t) {
  int64_t bytes = file->scratch_bytes;
  for (int i = 0; i < 3; ++i) bytes = AnyopSizeMultiply(bytes, t->cuda.grid[i]);
  bytes = AnyopSizeAdd(bytes, file->scratch_align);
  char* memory = bytes == ANYOP_NO_SIZE ? NULL : (char*)call->workspace(call, bytes);
  if (!memory) return kAnyopOutOfMemory;
  const uintptr_t align = file->scratch_align ? file->scratch_align : 1;
  t->storage[t->num_values] = (int64_t)(((uintptr_t)memory + align - 1) / align * align);
  return kAnyopOk;
}

/* Starts the kernel on the call's stream. All of `t` but cuda.block is filled. */
static inline int32_t AnyopTritonRun(AnyopCall* call, AnyopTritonKernel* kernel,
                                     AnyopTritonLaunch* t) {
  AnyopCudaDriver* driver;
  AnyopCudaLaunch* launch = &t->cuda;
  int32_t status;
  launch->block[0] = launch->block[1] = launch->block[2] = 1;
  if (AnyopCudaCheckLaunch(call, launch))
    return AnyopTritonDecline(call, "would need a grid that CUDA does not take");
  if (!launch->grid[0] || !launch->grid[1] || !launch->grid[2])
    return call->fail(call, kAnyopValueError,
                      "its grid is empty, so that nothing would write its results");
  if ((status = AnyopCudaOpen(call, &driver))) return status;
  if (call->device_id < 0)
    return call->fail(call, kAnyopDeviceError, "its device's number is negative");
  AnyopTritonLoaded* loaded = AnyopTritonFind(call, driver, kernel, t, &status);
  if (!loaded) return status;
  if (loaded->why[0]) return AnyopTritonDecline(call, loaded->why);
  const AnyopTritonFile* file = &loaded->file;
  launch->block[0] = file->threads;
  launch->shared_bytes = file->shared_bytes;
  launch->cooperative = (int32_t)file->cooperative;
  launch->pdl = (int32_t)file->pdl;
  if (file->num_ctas > 1) {
    launch->cluster[0] = file->num_ctas;
    launch->cluster[1] = launch->cluster[2] = 1;
    launch->grid[0] *= file->num_ctas;
  }
  if ((status = AnyopCudaCheckLaunch(call, launch))) return status;
  for (uint32_t i = 0; i < file->hidden; ++i) AnyopTritonPut(t, 0);
  if (file->scratch_bytes) {
    t->num_values -= (int32_t)file->hidden;
    if ((status = AnyopTritonScratch(call, file, t))) return status;
  }
  return AnyopCudaStartLoaded(call, driver, &loaded->cuda, launch, t->values);
}

#endif /* ANYOP_FORMS_TRITON_IMAGE_H_ */
