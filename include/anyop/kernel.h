/* SPDX-License-Identifier: Apache-2.0 */
/* What a kernel sees: tensors, lists, optional scalars, and the call it belongs to. C ABI, no other
 * header. */
#ifndef ANYOP_KERNEL_H_
#define ANYOP_KERNEL_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define ANYOP_STATIC_ASSERT(condition) static_assert(condition, #condition)
extern "C" {
#else
#define ANYOP_STATIC_ASSERT(condition) _Static_assert(condition, #condition)
#endif

/* A tensor the kernel does not own. Byte for byte a DLTensor, so that a framework writes it in
   place. The core promises more than DLPack: strides is never NULL unless ndim is 0, byte_offset is
   0, lanes is 1. */
typedef struct AnyopTensor {
  void* data;          /* of element (0, ..., 0); may be NULL when the tensor has no elements */
  int32_t device_type; /* DLDeviceType: 1 CPU, 2 CUDA, ... */
  int32_t device_id;
  int32_t ndim;
  uint8_t dtype_code; /* DLDataTypeCode */
  uint8_t dtype_bits;
  uint16_t dtype_lanes;
  int64_t* shape;
  int64_t* strides; /* in elements; 0 in a dimension that was broadcast */
  uint64_t byte_offset;
} AnyopTensor;
ANYOP_STATIC_ASSERT(sizeof(AnyopTensor) == 48 && offsetof(AnyopTensor, device_type) == 8);
ANYOP_STATIC_ASSERT(offsetof(AnyopTensor, ndim) == 16 && offsetof(AnyopTensor, dtype_code) == 20);
ANYOP_STATIC_ASSERT(offsetof(AnyopTensor, shape) == 24 && offsetof(AnyopTensor, strides) == 32);

/* Lists. None is {NULL, 0}; an empty list has non-NULL data. */
typedef struct AnyopTensorList {
  const AnyopTensor* data;
  int64_t count;
} AnyopTensorList;
typedef struct AnyopIntList { /* int[], bool[] (0 or 1), ScalarType[] (AnyopDtype) */
  const int64_t* data;
  int64_t count;
} AnyopIntList;
typedef struct AnyopFloatList {
  const double* data;
  int64_t count;
} AnyopFloatList;
typedef struct AnyopString { /* UTF-8, NUL behind the last byte; None is {NULL, 0} */
  const char* data;
  int64_t count;
} AnyopString;
typedef struct AnyopStringList {
  const AnyopString* data;
  int64_t count;
} AnyopStringList;

/* Optional scalars; value is 0 when has is 0. Optional bool and ScalarType are AnyopOptionalInt
 * too. */
typedef struct AnyopOptionalInt {
  int64_t value;
  int64_t has;
} AnyopOptionalInt;
typedef struct AnyopOptionalFloat {
  double value;
  int64_t has;
} AnyopOptionalFloat;
ANYOP_STATIC_ASSERT(sizeof(AnyopTensorList) == 16 && sizeof(AnyopString) == 16);
ANYOP_STATIC_ASSERT(sizeof(AnyopOptionalInt) == 16 && sizeof(AnyopOptionalFloat) == 16);

/* Element types. A set of them is a bit mask: bit AnyopDtype. */
typedef enum AnyopDtype {
  kAnyopBool = 0,
  kAnyopUInt8 = 1,
  kAnyopInt8 = 2,
  kAnyopInt16 = 3,
  kAnyopInt32 = 4,
  kAnyopInt64 = 5,
  kAnyopFloat16 = 6,
  kAnyopBFloat16 = 7,
  kAnyopFloat32 = 8,
  kAnyopFloat64 = 9,
  kAnyopComplex64 = 10,
  kAnyopComplex128 = 11,
  kAnyopFloat8E4M3FN = 12,
  kAnyopFloat8E5M2 = 13,
  kAnyopUInt16 = 14,
  kAnyopUInt32 = 15,
  kAnyopUInt64 = 16,
  kAnyopNumDtypes = 17,
  kAnyopNoDtype = 255,
} AnyopDtype;

/* What a kernel returns, and what every function of the C ABI returns. */
typedef enum AnyopStatus {
  kAnyopOk = 0,
  kAnyopValueError = 1,
  kAnyopTypeError = 2,
  kAnyopNotImplemented = 3,
  kAnyopOutOfMemory = 4,
  kAnyopInternalError = 5,
  kAnyopDeviceError = 6,
  kAnyopPending = 7,      /* a binding's own error is already set; kernels never return it */
  kAnyopIndexError = 8,   /* an index out of range */
  kAnyopRuntimeError = 9, /* of calls of ATen alone: torch refused, the text is torch's */
  kAnyopDeclined = 10,    /* of a kernel that has done nothing: the next of the route is asked, and
                             the text says why */
} AnyopStatus;

/* Half-open range [begin, end) of the work that AnyopCall::parallel divides. */
typedef void (*AnyopBody)(void* context, int64_t begin, int64_t end);

/* The call a kernel runs in. Append-only: a kernel reads no field beyond size. */
typedef struct AnyopCall {
  uint32_t size;
  int32_t device_type; /* of the operator's tensors */
  int32_t device_id;
  uint32_t reserved;
  void* stream; /* the caller's current stream; NULL on the CPU and for the default stream */
  /* Scratch memory on the device of the call, 64-byte aligned, alive until the kernel returns (on a
     stream: until the kernel's work there is done). NULL when there is none: return
     kAnyopOutOfMemory. */
  void* (*workspace)(struct AnyopCall* call, int64_t bytes);
  /* Notes an error and returns its status, to be returned by the kernel: return call->fail(call,
     ...). The message says what was found and what was expected; the operator's name is put before
     it. */
  int32_t (*fail)(struct AnyopCall* call, int32_t status, const char* message);
  /* CPU only: runs body over [0, count) in pieces of at least grain on the process's one thread
     pool. Returns when all is done. Bodies must not throw, and may not call fail or workspace. */
  void (*parallel)(struct AnyopCall* call, int64_t count, int64_t grain, AnyopBody body,
                   void* context);
  void* internal;
  void* context; /* of the implementation that runs (AnyopImplementation); NULL for compiled kernels
                  */
  int32_t choice; /* which of its ways a kernel with choices is to go; -1: it decides. By
                     AnyopChoice */
  int32_t reserved_choice;
} AnyopCall;
ANYOP_STATIC_ASSERT(sizeof(AnyopCall) == 72 && offsetof(AnyopCall, stream) == 16);
ANYOP_STATIC_ASSERT(offsetof(AnyopCall, workspace) == 24 && offsetof(AnyopCall, internal) == 48);

/* Every argument struct begins with this; the fields after it are generated from the schema. */
typedef struct AnyopArgs {
  uint32_t size;    /* of the whole struct, as the core filled it */
  uint32_t version; /* ANYOP_ABI_VERSION of the core */
} AnyopArgs;

typedef int32_t (*AnyopKernel)(const void* args, AnyopCall* call);

/* The choice of this call, from 0; -1: the kernel decides, as under a core that knows none. */
static inline int32_t AnyopChoice(const AnyopCall* call) {
  return call->size >= sizeof(AnyopCall) ? call->choice : -1;
}

/* The AnyopDtype of a DLPack type, kAnyopNoDtype when there is none. */
static inline AnyopDtype AnyopDtypeOf(const AnyopTensor* tensor) {
  switch (tensor->dtype_code << 8 | tensor->dtype_bits) {
    case 6 << 8 | 8:
      return kAnyopBool;
    case 1 << 8 | 8:
      return kAnyopUInt8;
    case 0 << 8 | 8:
      return kAnyopInt8;
    case 0 << 8 | 16:
      return kAnyopInt16;
    case 0 << 8 | 32:
      return kAnyopInt32;
    case 0 << 8 | 64:
      return kAnyopInt64;
    case 2 << 8 | 16:
      return kAnyopFloat16;
    case 4 << 8 | 16:
      return kAnyopBFloat16;
    case 2 << 8 | 32:
      return kAnyopFloat32;
    case 2 << 8 | 64:
      return kAnyopFloat64;
    case 5 << 8 | 64:
      return kAnyopComplex64;
    case 5 << 8 | 128:
      return kAnyopComplex128;
    case 10 << 8 | 8:
      return kAnyopFloat8E4M3FN;
    case 12 << 8 | 8:
      return kAnyopFloat8E5M2;
    case 1 << 8 | 16:
      return kAnyopUInt16;
    case 1 << 8 | 32:
      return kAnyopUInt32;
    case 1 << 8 | 64:
      return kAnyopUInt64;
    default:
      return kAnyopNoDtype;
  }
}

#ifdef __cplusplus
} /* extern "C" */

namespace anyop {

/* call->parallel for a lambda: ParallelFor(call, rows, 1, [&](int64_t begin, int64_t end) { ... }).
 */
template <typename Body>
inline void ParallelFor(AnyopCall* call, int64_t count, int64_t grain, const Body& body) {
  call->parallel(
      call, count, grain,
      [](void* context, int64_t begin, int64_t end) {
        (*static_cast<const Body*>(context))(begin, end);
      },
      const_cast<Body*>(&body));
}

} /* namespace anyop */
#endif

#endif /* ANYOP_KERNEL_H_ */
