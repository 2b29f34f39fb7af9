/* SPDX-License-Identifier: Apache-2.0 */
/* For generated code: a kernel that is a function of Ascend's libraries of operators. It is called
   in two phases: the size of its workspace, then itself on the call's stream. The libraries are
   opened at the first call, beside the ACL that the device uses, and what is called of them is
   declared here anew. A function that they lack, and arguments that it does not take, are left to
   the next of the route. C. */
#ifndef ANYOP_FORMS_ACLNN_CALL_H_
#define ANYOP_FORMS_ACLNN_CALL_H_

#include <math.h>
#include <stdlib.h>

#include "anyop/device.h"
#include "anyop/forms/cuda_image.h"   /* AnyopCudaElements */
#include "anyop/forms/device_image.h" /* AnyopImageDevice */
#include "anyop/library_file.h"

enum {
  kAnyopAclnnObjects = 24,
  kAnyopAclnnDims = 8,
  kAnyopAclnnNd = 2,               /* ACL_FORMAT_ND */
  kAnyopAclnnFloat = 0,            /* ACL_FLOAT */
  kAnyopAclnnParameter = 161,      /* thousands of the codes of arguments that are not taken */
  kAnyopAclnnDeviceMemory = 207001 /* ACL_ERROR_RT_MEMORY_ALLOCATION */
};

/* What every function needs besides itself. tests/runtimes/runtimes_aclnn_test.py compares the
   types with the vendor's. */
typedef struct AnyopAclnnApi {
  void* (*aclCreateTensor)(const int64_t* sizes, uint64_t ndim, int32_t dtype,
                           const int64_t* strides, int64_t offset, int32_t format,
                           const int64_t* storage, uint64_t storage_ndim, void* data);
  void* (*aclCreateScalar)(void* value, int32_t dtype);
  void* (*aclCreateIntArray)(const int64_t* values, uint64_t count);
  int32_t (*aclDestroyTensor)(const void* tensor);
  int32_t (*aclDestroyScalar)(const void* scalar);
  int32_t (*aclDestroyIntArray)(const void* array);
  const char* (*aclGetRecentErrMsg)(void);
} AnyopAclnnApi;

typedef struct AnyopAclnnReady { /* found, or why not */
  AnyopAclnnApi api;
  void* sizes; /* the first phase */
  int32_t (*run)(void* workspace, uint64_t bytes, void* executor, void* stream);
  char why[1024];
} AnyopAclnnReady;

typedef struct AnyopAclnn {
  const char* name;
  AnyopAclnnReady* ready;
} AnyopAclnn;

typedef struct AnyopAclnnCall {
  AnyopCall* call;
  const AnyopAclnnReady* ready;
  const char* name;
  uint64_t workspace_bytes;
  void* executor;
  int32_t status, count;
  const void* objects[kAnyopAclnnObjects];
  int32_t (*destroy[kAnyopAclnnObjects])(const void*);
  /* Alive until the first phase has returned. */
  int64_t sizes[kAnyopAclnnObjects][kAnyopAclnnDims];
  int64_t strides[kAnyopAclnnObjects][kAnyopAclnnDims];
  int64_t storage[kAnyopAclnnObjects];
} AnyopAclnnCall;

/* ---- the libraries ---- */

typedef struct AnyopAclnnSearch {
  int opened;         /* libraries of operators */
  char problem[1024]; /* of one that is there and was not opened */
} AnyopAclnnSearch;

/* A name, first in the folder of the ACL that is open already. NULL: it is not there. */
static inline void* AnyopAclnnOpen(const char* name, AnyopAclnnSearch* search) {
  char path[4096];
  Dl_info info;
  void* acl = dlopen("libascendcl.so", RTLD_NOW | RTLD_NOLOAD);
  void* known = acl ? dlsym(acl, "aclInit") : NULL;
  const char* slash = known && dladdr(known, &info) ? strrchr(info.dli_fname, '/') : NULL;
  if (slash) {
    const int n = (int)(slash - info.dli_fname);
    if (snprintf(path, sizeof path, "%.*s/%s", n, info.dli_fname, name) < (int)sizeof path &&
        access(path, R_OK) == 0)
      return AnyopOpenLibraryFile(path, RTLD_NOW | RTLD_LOCAL, search->problem,
                                  sizeof search->problem);
  }
  return dlopen(name, RTLD_NOW | RTLD_LOCAL);
}

/* NULL where no library has it. Newer CANNs have four libraries for one. */
static inline void* AnyopAclnnFind(const char* symbol, AnyopAclnnSearch* search) {
  static const char* const kLibraries[] = {"libopapi_math.so",        "libopapi_nn.so",
                                           "libopapi_transformer.so", "libopapi.so",
                                           "libnnopbase.so",          "libascendcl.so"};
  for (size_t i = 0; i < sizeof kLibraries / sizeof kLibraries[0]; ++i) {
    void* library = AnyopAclnnOpen(kLibraries[i], search);
    void* found = library ? dlsym(library, symbol) : NULL;
    search->opened += library && i < 4;
    if (found) return found;
  }
  return NULL;
}

static inline void AnyopAclnnNeed(AnyopAclnnReady* ready, const char* symbol, void* function,
                                  AnyopAclnnSearch* search) {
  void* found = ready->why[0] ? NULL : AnyopAclnnFind(symbol, search);
  memcpy(function, &found, sizeof found);
  if (found || ready->why[0]) return;
  if (search->problem[0])
    snprintf(ready->why, sizeof ready->why, "needs %s: %.800s", symbol, search->problem);
  else if (search->opened)
    snprintf(ready->why, sizeof ready->why, "needs %s, which the installed CANN's libopapi lacks",
             symbol);
  else
    snprintf(ready->why, sizeof ready->why,
             "needs %s of libopapi.so, which is not beside libascendcl.so: install CANN's package "
             "of operators (ops, kernels) and source its set_env.sh",
             symbol);
}

static inline const AnyopAclnnReady* AnyopAclnnLoad(AnyopAclnn* function) {
  char sizes[128];
  AnyopAclnnSearch search = {0, ""};
  AnyopAclnnReady* none = NULL;
  AnyopAclnnReady* ready = __atomic_load_n(&function->ready, __ATOMIC_ACQUIRE);
  if (ready || !(ready = (AnyopAclnnReady*)calloc(1, sizeof *ready))) return ready;
  snprintf(sizes, sizeof sizes, "%sGetWorkspaceSize", function->name);
  AnyopAclnnNeed(ready, sizes, &ready->sizes, &search);
  AnyopAclnnNeed(ready, function->name, &ready->run, &search);
#define ANYOP_ACLNN_NEED(name) AnyopAclnnNeed(ready, #name, &ready->api.name, &search)
  ANYOP_ACLNN_NEED(aclCreateTensor);
  ANYOP_ACLNN_NEED(aclCreateScalar);
  ANYOP_ACLNN_NEED(aclCreateIntArray);
  ANYOP_ACLNN_NEED(aclDestroyTensor);
  ANYOP_ACLNN_NEED(aclDestroyScalar);
  ANYOP_ACLNN_NEED(aclDestroyIntArray);
  ANYOP_ACLNN_NEED(aclGetRecentErrMsg);
#undef ANYOP_ACLNN_NEED
  if (__atomic_compare_exchange_n(&function->ready, &none, ready, 0, __ATOMIC_ACQ_REL,
                                  __ATOMIC_ACQUIRE))
    return ready;
  free(ready); /* another thread was first */
  return none;
}

/* ---- the call ---- */

static inline int32_t AnyopAclnnStop(AnyopAclnnCall* c, int32_t status, const char* text) {
  if (!c->status) c->status = c->call->fail(c->call, status, text);
  return c->status;
}

static inline int32_t AnyopAclnnBegin(AnyopAclnnCall* c, AnyopCall* call, AnyopAclnn* function,
                                      const char* name) {
  const AnyopDevice* device = AnyopImageDevice(call->device_type);
  c->call = call;
  c->name = function->name;
  c->workspace_bytes = 0;
  c->executor = NULL;
  c->status = c->count = 0;
  if (!device || strcmp(device->name, name))
    return AnyopAclnnStop(c, kAnyopDeclined, "is for the device ascend, which is not in use");
  c->ready = AnyopAclnnLoad(function);
  if (!c->ready) return AnyopAclnnStop(c, kAnyopOutOfMemory, "out of memory");
  if (c->ready->why[0]) return AnyopAclnnStop(c, kAnyopDeclined, c->ready->why);
  return kAnyopOk;
}

/* aclDataType of an AnyopDtype. */
static inline int32_t AnyopAclnnDtype(int32_t dtype) {
  static const int8_t kTypes[kAnyopNumDtypes] = {12, 4,  2,  6,  3,  9, 1, 27, 0,
                                                 11, 16, 17, 36, 35, 7, 8, 10};
  return dtype >= 0 && dtype < kAnyopNumDtypes ? kTypes[dtype] : -1;
}

static inline void AnyopAclnnSame(AnyopAclnnCall* c, const AnyopTensor* const* tensors,
                                  int32_t count, const char* text) {
  const AnyopTensor* first = NULL;
  for (int32_t i = 0; i < count; ++i) {
    if (!tensors[i]) continue;
    if (!first) first = tensors[i];
    if (AnyopDtypeOf(tensors[i]) != AnyopDtypeOf(first)) AnyopAclnnStop(c, kAnyopDeclined, text);
  }
}

static inline const void* AnyopAclnnKeep(AnyopAclnnCall* c, const void* object,
                                         int32_t (*destroy)(const void*)) {
  if (!object) {
    AnyopAclnnStop(c, kAnyopOutOfMemory, "CANN made no tensor or number");
    return NULL;
  }
  c->objects[c->count] = object;
  c->destroy[c->count++] = destroy;
  return object;
}

/* A view by sizes[count] and strides[count]; its memory ends behind its last element. */
static inline const void* AnyopAclnnView(AnyopAclnnCall* c, int32_t ndim, int32_t dtype,
                                         void* data) {
  if (c->status) return NULL;
  const int64_t *sizes = c->sizes[c->count], *strides = c->strides[c->count];
  int64_t* storage = &c->storage[c->count];
  *storage = 1;
  for (int32_t d = 0; d < ndim; ++d) {
    if (strides[d] < 0) AnyopAclnnStop(c, kAnyopDeclined, "takes no strides below 0");
    *storage = sizes[d] && *storage ? *storage + (sizes[d] - 1) * strides[d] : 0;
  }
  if (c->status) return NULL;
  return AnyopAclnnKeep(c,
                        c->ready->api.aclCreateTensor(sizes, (uint64_t)ndim, AnyopAclnnDtype(dtype),
                                                      strides, 0, kAnyopAclnnNd, storage, 1, data),
                        c->ready->api.aclDestroyTensor);
}

/* Sizes and strides of a tensor in those of the next view. 0: it has too many. */
static inline int AnyopAclnnPlace(AnyopAclnnCall* c, const AnyopTensor* tensor) {
  if (c->status) return 0;
  if (tensor->ndim > kAnyopAclnnDims) {
    AnyopAclnnStop(c, kAnyopDeclined, "takes at most 8 dimensions");
    return 0;
  }
  for (int32_t d = 0; d < tensor->ndim; ++d) {
    c->sizes[c->count][d] = tensor->shape[d];
    c->strides[c->count][d] = tensor->strides[d];
  }
  return 1;
}

/* NULL: an optional tensor that is absent. */
static inline const void* AnyopAclnnTensor(AnyopAclnnCall* c, const AnyopTensor* tensor) {
  if (!tensor || !AnyopAclnnPlace(c, tensor)) return NULL;
  return AnyopAclnnView(c, tensor->ndim, AnyopDtypeOf(tensor), tensor->data);
}

/* A contiguous tensor as a matrix of its rows. */
static inline const void* AnyopAclnnRows(AnyopAclnnCall* c, const AnyopTensor* tensor) {
  if (!tensor || c->status) return NULL;
  const int64_t columns = tensor->ndim ? tensor->shape[tensor->ndim - 1] : 1;
  c->sizes[c->count][0] = columns ? AnyopCudaElements(tensor) / columns : 0;
  c->sizes[c->count][1] = c->strides[c->count][0] = columns;
  c->strides[c->count][1] = 1;
  return AnyopAclnnView(c, 2, AnyopDtypeOf(tensor), tensor->data);
}

/* With its last two dimensions exchanged. */
static inline const void* AnyopAclnnTransposed(AnyopAclnnCall* c, const AnyopTensor* tensor) {
  if (!tensor || !AnyopAclnnPlace(c, tensor)) return NULL;
  int64_t* of_both[] = {c->sizes[c->count], c->strides[c->count]};
  for (int i = 0; i < 2 && tensor->ndim > 1; ++i) {
    int64_t* last = of_both[i] + tensor->ndim - 1;
    const int64_t kept = last[0];
    last[0] = last[-1];
    last[-1] = kept;
  }
  return AnyopAclnnView(c, tensor->ndim, AnyopDtypeOf(tensor), tensor->data);
}

static inline int64_t AnyopAclnnInt(AnyopAclnnCall* c, int64_t value) {
  if (value == ANYOP_NO_SIZE)
    AnyopAclnnStop(c, kAnyopValueError, "a size of its call is too large, or not defined");
  return value;
}

/* Scratch memory of a tensor's sizes but the last: what a function writes and nobody reads. */
static inline const void* AnyopAclnnReduced(AnyopAclnnCall* c, const AnyopTensor* tensor,
                                            int32_t dtype, int64_t last) {
  static const uint8_t kBytes[kAnyopNumDtypes] = {1, 1, 1,  2, 4, 8, 2, 2, 4,
                                                  8, 8, 16, 1, 1, 2, 4, 8};
  AnyopAclnnInt(c, last);
  if (!AnyopAclnnPlace(c, tensor)) return NULL;
  int64_t count = 1;
  for (int32_t d = tensor->ndim - 1; d >= 0; --d) {
    if (d == tensor->ndim - 1) c->sizes[c->count][d] = last;
    c->strides[c->count][d] = count;
    count *= c->sizes[c->count][d];
  }
  void* memory = count ? c->call->workspace(c->call, count * kBytes[dtype]) : NULL;
  if (count && !memory) c->status = kAnyopOutOfMemory;
  return AnyopAclnnView(c, tensor->ndim, dtype, memory);
}

static inline const void* AnyopAclnnScalar(AnyopAclnnCall* c, double value) {
  float narrow = (float)value;
  if (c->status) return NULL;
  return AnyopAclnnKeep(c, c->ready->api.aclCreateScalar(&narrow, kAnyopAclnnFloat),
                        c->ready->api.aclDestroyScalar);
}

static inline int8_t AnyopAclnnInt8(AnyopAclnnCall* c, int64_t value) {
  if (value < INT8_MIN || value > INT8_MAX)
    AnyopAclnnStop(c, kAnyopValueError, "a number of its call does not fit into 8 bits");
  return (int8_t)value;
}

static inline const void* AnyopAclnnSizes(AnyopAclnnCall* c, const int64_t* values,
                                          uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) AnyopAclnnInt(c, values[i]);
  if (c->status) return NULL;
  return AnyopAclnnKeep(c, c->ready->api.aclCreateIntArray(values, count),
                        c->ready->api.aclDestroyIntArray);
}

/* What a phase says: arguments that the first one does not take have done nothing. */
static inline void AnyopAclnnCheck(AnyopAclnnCall* c, const char* phase, int32_t code) {
  char text[768];
  if (!code || c->status) return;
  const char* said = c->ready->api.aclGetRecentErrMsg();
  const int declined = phase[0] && code / 1000 == kAnyopAclnnParameter;
  snprintf(text, sizeof text, "%s%s says \"%.600s\" (%d)", c->name, phase, said ? said : "no text",
           code);
  AnyopAclnnStop(c,
                 declined                          ? kAnyopDeclined
                 : code == kAnyopAclnnDeviceMemory ? kAnyopOutOfMemory
                                                   : kAnyopDeviceError,
                 text);
}

static inline void AnyopAclnnDrop(void* executor) {
  AnyopAclnnSearch search = {0, ""};
  int32_t (*destroy)(const void*);
  void* found = AnyopAclnnFind("aclDestroyAclOpExecutor", &search);
  memcpy(&destroy, &found, sizeof destroy);
  if (found && executor) destroy(executor);
}

/* The second phase, where `code` of the first one allows it; it ends the executor. The workspace is
   freed in the order of the stream. */
static inline int32_t AnyopAclnnRun(AnyopAclnnCall* c, int32_t code) {
  AnyopCall* call = c->call;
  void* workspace = NULL;
  AnyopAclnnCheck(c, "GetWorkspaceSize", code);
  if (!c->status && c->workspace_bytes) {
    workspace = call->workspace(call, (int64_t)c->workspace_bytes);
    if (!workspace) {
      c->status = kAnyopOutOfMemory;
      AnyopAclnnDrop(c->executor);
    }
  }
  if (!c->status) {
    code = c->ready->run(workspace, c->workspace_bytes, c->executor, call->stream);
    AnyopAclnnCheck(c, "", code);
  }
  while (c->count) {
    --c->count;
    c->destroy[c->count](c->objects[c->count]);
  }
  return c->status;
}

#endif /* ANYOP_FORMS_ACLNN_CALL_H_ */
