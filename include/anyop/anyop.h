/* SPDX-License-Identifier: Apache-2.0 */
/* The C ABI for callers: find an operator, call it, load further libraries of operators.

   Every function may be called from any thread. Functions that return int32_t return an
   AnyopStatus; the text of a failure is AnyopLastError() of the same thread until its next call.
   Nothing throws. */
#ifndef ANYOP_ANYOP_H_
#define ANYOP_ANYOP_H_

#include "anyop/kernel.h"
#include "anyop/table.h"

#if defined(__GNUC__)
#define ANYOP_API __attribute__((visibility("default")))
#else
#define ANYOP_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* An operator of the registry; lives as long as the process. */
typedef struct AnyopOperator AnyopOperator;

/* One argument or result. Zeroed memory is None: the default of an argument, "make it" for a
 * result. */
typedef enum AnyopValueKind {
  kAnyopNoValue = 0,
  kAnyopTensorValue = 1,
  kAnyopIntValue = 2, /* int, bool and ScalarType (AnyopDtype) */
  kAnyopFloatValue = 3,
  kAnyopStringValue = 4, /* NUL-terminated UTF-8 */
  kAnyopTensorsValue = 5,
  kAnyopIntsValue = 6,
  kAnyopFloatsValue = 7,
  kAnyopStringsValue = 8,
} AnyopValueKind;

typedef struct AnyopValue {
  int32_t kind;
  int32_t reserved; /* 0 */
  union {
    AnyopTensor* tensor;
    int64_t i;
    double f;
    const char* s;
    AnyopTensorList tensors;
    AnyopIntList ints;
    AnyopFloatList floats;
    AnyopStringList strings;
  } as;
} AnyopValue;
ANYOP_STATIC_ASSERT(sizeof(AnyopValue) == 24 && offsetof(AnyopValue, as) == 8);

/* Zero it and set size. */
typedef struct AnyopInvokeOptions {
  uint32_t size;
  uint32_t reserved;
  void* stream; /* of the device of the tensors; NULL: its default stream */
  /* The backends of this call, before all other routes, as "aten" or
     "triton,cuda=*norm*;aten=topk": rules "backends=patterns of operators" of which the last that
     fits holds; NULL: none. */
  const char* use;
  /* Makes the memory of a result that is None, in place of AnyopNewTensor: its device, dtype, ndim
     and shape are set; data and strides are to be filled, shape to be replaced where it would not
     outlive the call, and the result's value stays None. Returns an AnyopStatus; kAnyopPending: the
     caller knows the error. */
  int32_t (*allocate)(void* context, int32_t result, AnyopTensor* tensor);
  void* context;
} AnyopInvokeOptions;
ANYOP_STATIC_ASSERT(sizeof(AnyopInvokeOptions) == 40 && offsetof(AnyopInvokeOptions, use) == 16);

/* One more implementation of an operator. Zero it and set size; texts are copied. */
typedef struct AnyopImplementation {
  uint32_t size;
  int32_t device_type; /* DLDeviceType of the tensors it takes; 0: any */
  const char* backend; /* "triton": what routes name */
  const char*
      name; /* its own in the operator, one of the same name is replaced; NULL: the backend's */
  const char* source; /* where it comes from, for people */
  const char* when;   /* which calls it takes: "dtype=float32|bfloat16 D<=8192"; NULL: all */
  int32_t
      priority; /* anyop's own kernels have 0: below, it runs when routed to or nothing else fits */
  uint32_t flags;  /* AnyopKernelFlag */
  AnyopKernel run; /* reads its context as call->context */
  void* context;
} AnyopImplementation;
ANYOP_STATIC_ASSERT(sizeof(AnyopImplementation) == 64);

/* "0.1.0", and the newest table this core reads. */
ANYOP_API const char* AnyopVersion(void);
ANYOP_API uint32_t AnyopAbiVersion(void);

/* Text of this thread's last failure; never NULL. */
ANYOP_API const char* AnyopLastError(void);

/* "rms_norm", "anyop.rms_norm", "acme.rms_norm" or "acme::rms_norm". NULL when there is none. */
ANYOP_API const AnyopOperator* AnyopFindOperator(const char* name);
/* Writes up to capacity operators, in the order of their names, and returns how many there are;
   -1 where there is no memory to know them. */
ANYOP_API int32_t AnyopListOperators(const AnyopOperator** operators, int32_t capacity);
ANYOP_API const AnyopOp* AnyopOperatorTable(const AnyopOperator* op);

/* Calls an operator. values are its arguments in the schema's order, then its results; what lies
   behind count is None. A result that is None is made on the CPU and put into its value, for
   AnyopDeleteTensor (values must then have room for it); an optional result is made only when its
   kind is kAnyopTensorValue and its tensor NULL. */
ANYOP_API int32_t AnyopInvoke(const AnyopOperator* op, AnyopValue* values, int32_t count,
                              const AnyopInvokeOptions* options);

/* A tensor with memory of its own on the CPU, 64-byte aligned, row-major, uninitialised. */
ANYOP_API int32_t AnyopNewTensor(AnyopDtype dtype, int32_t ndim, const int64_t* shape,
                                 AnyopTensor** tensor);
ANYOP_API void AnyopDeleteTensor(AnyopTensor* tensor); /* NULL is ignored */

/* Adds the operators of a library: all of them or, with an error, none. Loading the same one again
 * is no error. */
ANYOP_API int32_t AnyopRegisterLibrary(const AnyopLibrary* library);
/* Opens a shared object that exports AnyopLibraryEntry and registers it. It is never closed. */
ANYOP_API int32_t AnyopLoadLibrary(const char* path);

/* Adds an implementation. Safe under calls, as are all functions below. */
ANYOP_API int32_t AnyopRegisterImplementation(const AnyopOperator* op,
                                              const AnyopImplementation* implementation);
/* Routes no longer lead to it; calls under way still finish in it, so its context must live on. */
ANYOP_API int32_t AnyopRemoveImplementation(const AnyopOperator* op, const char* name);

/* Replaces all rules by those of a route file, or of the preset of that name (docs/routing.md): all
   of them or, with an error "file:line:column: ...", none. NULL: back to priorities alone. */
ANYOP_API int32_t AnyopLoadRoutes(const char* path);
/* 1: only implementations that declare determinism are taken. */
ANYOP_API int32_t AnyopSetDeterministic(int32_t on);

/* Writes what AnyopInvoke would run, as JSON, without running or making anything: the
   implementation chosen, by which rule, and for each other one why not. Writes up to capacity bytes
   with the final NUL; *length is what all takes. */
ANYOP_API int32_t AnyopExplain(const AnyopOperator* op, AnyopValue* values, int32_t count,
                               const AnyopInvokeOptions* options, char* text, int64_t capacity,
                               int64_t* length);

/* Threads that CPU kernels use, the calling one among them; at least 1. The first value comes from
   ANYOP_NUM_THREADS, else from the processors and the cgroup's quota. */
ANYOP_API int32_t AnyopGetNumThreads(void);
ANYOP_API int32_t AnyopSetNumThreads(int32_t count);

#ifdef __cplusplus
}
#endif

#endif /* ANYOP_ANYOP_H_ */
