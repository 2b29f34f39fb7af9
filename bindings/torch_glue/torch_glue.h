/* SPDX-License-Identifier: Apache-2.0 */
/* What the glue gives the bindings: torch's tensors read, made and marked in one call each. C ABI,
   no torch header.

   A tensor is named by the address of its c10::TensorImpl. Nothing throws but kernels. */
#ifndef ANYOP_TORCH_GLUE_H_
#define ANYOP_TORCH_GLUE_H_

#include "anyop/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ANYOP_TORCH_GLUE_VERSION 5u

/* How a call may go on; the worst of its tensors' verdicts holds. */
typedef enum AnyopTorchVerdict {
  kAnyopTorchPlain = 0,    /* memory is the value, nobody watches */
  kAnyopTorchGradient = 1, /* plain, and a gradient is to be recorded */
  kAnyopTorchDispatch = 2, /* only torch's dispatcher gives torch's answer */
} AnyopTorchVerdict;

typedef enum AnyopTorchFlag {
  kAnyopTorchRecords = 1,      /* to view: gradients are being recorded */
  kAnyopTorchWrites = 2,       /* to view: the operator writes the tensor */
  kAnyopTorchShortStorage = 4, /* from view: the storage ends before the tensor does */
  kAnyopTorchFrozen = 8, /* from view: an inference tensor, to be written outside inference mode */
  kAnyopTorchLazy = 16,  /* from view_memory: a conj or neg view, whose memory is not its value */
  kAnyopTorchObserved = 32 /* to thread_verdict: the dispatcher calls, and has told a profiler */
} AnyopTorchFlag;

/* What a message says of a tensor with these flags; NULL when it may be used. */
static inline const char* AnyopTorchRefusal(int32_t flags) {
  if (flags & kAnyopTorchShortStorage) return "is larger than its storage";
  if (flags & kAnyopTorchFrozen)
    return "is an inference tensor, which may be written in inference mode only";
  if (flags & kAnyopTorchLazy)
    return "is a conj or neg view where torch resolves none (in a handler of __torch_dispatch__), "
           "expected x.resolve_conj().resolve_neg()";
  return NULL;
}

/* What an argument is on the dispatcher's stack. An optional one has the capital letter. */
typedef enum AnyopTorchKind {
  kAnyopTorchTensor = 't', /* the address of a pointer to its c10::TensorImpl */
  kAnyopTorchInt = 'i',    /* dtypes are torch's numbers */
  kAnyopTorchBool = 'b',
  kAnyopTorchFloat = 'f', /* the bits of a double */
  kAnyopTorchString = 's' /* the address of an AnyopTorchText */
} AnyopTorchKind;

typedef struct AnyopTorchText {
  const char* data;
  uint64_t bytes;
} AnyopTorchText;

#define ANYOP_TORCH_MOST_VALUES 66 /* an operator's parameters, a mask and a scope */

/* Runs a call. values: a word for each argument, of an optional one the word's address, 0 for None;
   all of it the caller's. results: owned references, NULL for None. Not 0 when the call is to be
   recorded, with its overload defined by then. Throws what is to be raised. */
typedef int32_t (*AnyopTorchBoxedRun)(void* context, const uint64_t* values, uint64_t count,
                                      void** results);

typedef struct AnyopTorchBoxed {
  const char* name;     /* with the namespace: "anyop::relu" */
  const char* overload; /* "" or "out" */
  const char* key;      /* "CPU" */
  const char* kinds;    /* a letter for each argument */
  const char* recorded; /* the overload that records */
  AnyopTorchBoxedRun run;
  void (*failed)(void* context, const char* why); /* throws: what records could not */
  void* context;
  uint32_t num_results;
} AnyopTorchBoxed;

typedef struct AnyopTorchGlue {
  uint32_t size;
  uint32_t version;          /* ANYOP_TORCH_GLUE_VERSION */
  const char* torch_version; /* of the headers, as torch.__version__ says it */
  /* This thread's state: kAnyopTorchPlain or kAnyopTorchDispatch; flags: kAnyopTorchObserved or 0
     becomes kAnyopTorchRecords or 0.
     Dispatch when there is a mode, a transform, autocast, tracing or a profiler. */
  int32_t (*thread_verdict)(int32_t* flags);
  /* Fills tensor (sizes and strides point into impl) and returns a verdict; flags as above, both
   * ways. */
  int32_t (*view)(void* impl, int32_t* flags, AnyopTensor* tensor);
  /* The same without looking at keys and gradients, for kernels that the dispatcher has called. 0
   * when done. */
  int32_t (*view_memory)(void* impl, int32_t* flags, AnyopTensor* tensor);
  /* Raises the version counter; nothing for an inference tensor, which has none. */
  void (*written)(void* impl);
  /* A new row-major tensor of tensor's device, dtype and shape; sets data. An owned reference in
   *impl, or an AnyopStatus with a message of the allocator's in error. */
  int32_t (*new_tensor)(AnyopTensor* tensor, void** impl, char* error, int64_t error_bytes);
  void (*release)(void* impl);
  /* Until let_go of what is returned the memory of all impls stays in its place: their storages are
     kept, and cannot be resized. NULL where there is no memory to note it. */
  void* (*hold)(void* const* impls, uint64_t count);
  void (*let_go)(void* held);
  /* Until leave this thread calls plain kernels and nothing else (no gradients, autocast, modes,
     handlers of __torch_function__), on that CUDA device and stream where device_type is 2. NULL
     where torch cannot. */
  void* (*enter)(int32_t device_type, int32_t device_id, void* stream);
  void (*leave)(void* entered);
  /* A tensor over somebody's memory, to be taken back: an owned reference in *impl. NULL where
     torch has no such tensor. */
  void* (*lend)(const AnyopTensor* tensor, void** impl);
  /* Whether more than the loan refers to the memory. */
  int32_t (*is_kept)(void* lent);
  /* Who still refers to it finds no memory there. */
  void (*take_back)(void* lent);
  /* Gives an overload its kernel at a key, for ever. 0 when done. */
  int32_t (*implement)(const AnyopTorchBoxed* kernel);
} AnyopTorchGlue;

typedef const AnyopTorchGlue* (*AnyopTorchGlueFunction)(
    void); /* the library exports AnyopTorchGlueEntry */

#ifdef __cplusplus
}
#endif

#endif /* ANYOP_TORCH_GLUE_H_ */
