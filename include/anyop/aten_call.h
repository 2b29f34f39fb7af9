/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of ATen's operators, all of them, by the schemas of the torch that is installed. C ABI, no
   torch header.

   AnyopAtenOpen reads the table that `anyop aten table` has written; from then on every overload of
   ATen is found by name and called by one function. Typed C++ is in anyop/aten.h, made for the same
   torch by `anyop aten header`.

   Every function may be called from any thread. Functions that return int32_t return an
   AnyopStatus; the text of a failure is AnyopLastError() of the same thread. Nothing throws.
   A zeroed AnyopAtenValue is None. */
#ifndef ANYOP_ATEN_CALL_H_
#define ANYOP_ATEN_CALL_H_

#include "anyop/anyop.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An overload; lives as long as the process. */
typedef struct AnyopAtenOp AnyopAtenOp;

/* A tensor of torch's. Who holds a reference lets it go by AnyopAtenRelease, once. */
typedef struct AnyopAtenTensor AnyopAtenTensor;

/* Somebody's memory as a tensor, for the time of a call. */
typedef struct AnyopAtenMemory {
  AnyopTensor tensor; /* strides NULL: row-major; none may be negative */
  uint32_t flags;     /* AnyopAtenMemoryFlag */
  uint32_t reserved;
  /* Where something still refers to the memory when the call ends, as a view does, retain(owner) is
     called before it ends, and release(owner) when nothing does any more, on any thread. Both
     NULL: the memory outlives all that refers to it. */
  void* owner;
  void (*retain)(void* owner);
  void (*release)(void* owner);
} AnyopAtenMemory;
ANYOP_STATIC_ASSERT(sizeof(AnyopAtenMemory) == sizeof(AnyopTensor) + 32);

typedef enum AnyopAtenMemoryFlag {
  kAnyopAtenReadOnly = 1, /* an operator that would write it is refused */
} AnyopAtenMemoryFlag;

typedef enum AnyopAtenTag {
  kAnyopAtenNone = 0,
  kAnyopAtenDefault = 1, /* an argument: as its schema says */
  kAnyopAtenInt = 2,     /* i; also torch's codes of dtypes, layouts and memory formats */
  kAnyopAtenFloat = 3,
  kAnyopAtenBool = 4,    /* i: 0 or 1 */
  kAnyopAtenComplex = 5, /* f, imag */
  /* s, count bytes. Also names: of dtypes ("float32"), layouts ("strided"), memory formats
     ("channels_last"), devices ("cuda:1"). */
  kAnyopAtenStr = 6,
  kAnyopAtenTorch = 7,    /* tensor: torch's own, borrowed as an argument, owned as a result */
  kAnyopAtenMemoryOf = 8, /* memory: an argument only */
  kAnyopAtenList = 9,  /* list, count values; as a result it is the caller's until AnyopAtenDrop */
  kAnyopAtenSeed = 10, /* i: a Generator of its own with this seed */
  kAnyopAtenGenerator = 11, /* generator: torch's own, a c10::GeneratorImpl*, borrowed */
  kAnyopAtenDevice =
      12, /* i: torch's type of device << 32 | its index as 32 bits, -1: the current */
} AnyopAtenTag;

typedef struct AnyopAtenValue {
  int32_t tag; /* AnyopAtenTag */
  uint32_t reserved;
  union {
    int64_t i;
    double f;
    const char* s;
    AnyopAtenTensor* tensor;
    AnyopAtenMemory* memory;
    struct AnyopAtenValue* list;
    void* generator;
  } as;
  union {
    int64_t count;
    double imag;
  } more;
} AnyopAtenValue;
ANYOP_STATIC_ASSERT(sizeof(AnyopAtenValue) == 24 && offsetof(AnyopAtenValue, as) == 8 &&
                    offsetof(AnyopAtenValue, more) == 16);

typedef enum AnyopAtenCallFlag {
  /* The call sees this thread's gradients, autocast and modes, as a call of torch's user does. Else
     plain kernels run, whatever the thread's state is; it is the same afterwards. */
  kAnyopAtenAsTorch = 1,
  kAnyopAtenHasStream = 2, /* stream says where device memory is used; else torch's current one */
} AnyopAtenCallFlag;

/* Zero it and set size. */
typedef struct AnyopAtenOptions {
  uint32_t size;
  uint32_t flags; /* AnyopAtenCallFlag */
  void* stream;   /* of CUDA device device_id */
  int32_t device_id;
  uint32_t reserved;
} AnyopAtenOptions;
ANYOP_STATIC_ASSERT(sizeof(AnyopAtenOptions) == 24);

/* Reads a table, once a process; the second call is for the same one or refused. Where torch is not
   loaded yet, its libraries are. glue: the path of torch_aten_glue.so for this torch, or NULL: then
   operators are called by torch's C shim, and those that it cannot call are refused by name. */
ANYOP_API int32_t AnyopAtenOpen(const char* table, const char* glue);

/* "add.Tensor"; "relu" or "relu.default" for the overload without a name; "aten::" may stand
   before. NULL with AnyopLastError set, which names the nearest. */
ANYOP_API const AnyopAtenOp* AnyopAtenFind(const char* name);

/* Torch's own text, as "add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor". */
ANYOP_API const char* AnyopAtenSchema(const AnyopAtenOp* op);

/* Number of its arguments and results. */
ANYOP_API int32_t AnyopAtenNumArguments(const AnyopAtenOp* op);
ANYOP_API int32_t AnyopAtenNumResults(const AnyopAtenOp* op);

/* arguments: in the schema's order; those behind count have their defaults. results:
   AnyopAtenNumResults values, written where the status is kAnyopOk, owned by the caller. options
   may be NULL. What is written in place is returned as an owned reference too. */
ANYOP_API int32_t AnyopAtenCall(const AnyopAtenOp* op, const AnyopAtenValue* arguments,
                                int32_t count, AnyopAtenValue* results,
                                const AnyopAtenOptions* options);

/* Lets go of values that a call returned. */
ANYOP_API void AnyopAtenDrop(AnyopAtenValue* values, int32_t count);
ANYOP_API void AnyopAtenRelease(AnyopAtenTensor* tensor);

/* Fills view, whose sizes point into the tensor. Where memory is not the value (conj, neg, zero
   tensors), the tensor is replaced by one whose memory is; kAnyopTypeError where there is none
   (sparse, quantized, meta). *flags: kAnyopAtenReadOnly where it lies in read-only memory. */
ANYOP_API int32_t AnyopAtenView(AnyopAtenTensor** tensor, AnyopTensor* view, uint32_t* flags);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ANYOP_ATEN_CALL_H_ */
