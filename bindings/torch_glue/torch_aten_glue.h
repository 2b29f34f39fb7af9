/* SPDX-License-Identifier: Apache-2.0 */
/* What the ATen glue gives bindings/aten: boxed calls by torch's dispatcher. C ABI, no torch
   header.

   An AnyopAtenTensor* is the address of an at::Tensor, as in torch's C shim. Nothing throws; a
   status comes with a text in error. */
#ifndef ANYOP_TORCH_ATEN_GLUE_H_
#define ANYOP_TORCH_ATEN_GLUE_H_

#include "anyop/aten_call.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ANYOP_TORCH_ATEN_GLUE_VERSION 3u

/* What a value of a schema is. A list's elements have the kind. */
typedef enum AnyopAtenKind {
  kAnyopAtenKindTensor = 0,
  kAnyopAtenKindScalar = 1,
  kAnyopAtenKindInt = 2, /* and SymInt */
  kAnyopAtenKindFloat = 3,
  kAnyopAtenKindBool = 4, /* and SymBool */
  kAnyopAtenKindStr = 5,
  kAnyopAtenKindDtype = 6,
  kAnyopAtenKindLayout = 7,
  kAnyopAtenKindMemoryFormat = 8,
  kAnyopAtenKindDevice = 9,
  kAnyopAtenKindGenerator = 10,
  kAnyopAtenKindOther = 11, /* Storage, Stream, Dict, QScheme, classes: not callable from here */
} AnyopAtenKind;

typedef enum AnyopAtenTypeFlag {
  kAnyopAtenOptional = 1,         /* T? and T[]? */
  kAnyopAtenIsList = 2,           /* T[] */
  kAnyopAtenOptionalElements = 4, /* T?[] */
  kAnyopAtenWrites = 8,           /* (a!) */
  kAnyopAtenWritesUnmarked = 16,  /* although the schema does not say so */
} AnyopAtenTypeFlag;

typedef struct AnyopAtenType {
  uint8_t kind;  /* AnyopAtenKind */
  uint8_t flags; /* AnyopAtenTypeFlag */
  /* Of a result: the argument that it is a view of or is itself; -1: none. Of an argument that is
     written unmarked: the bool under which it is; -1: always. */
  int16_t alias;
} AnyopAtenType;

/* A text of a schema ("Calls of ATen" in docs/forms.md) as steps of a machine with a stack of
   values. Dtypes are torch's codes. What a step says of its number: */
typedef enum AnyopAtenStepKind {
  kAnyopAtenStepEnd = 0,
  kAnyopAtenStepConstant = 1, /* pushes that constant */
  kAnyopAtenStepDefault = 2,  /* pushes the default of argument number & 63 of call number >> 6 */
  kAnyopAtenStepValue = 3,    /* pushes that value: of a parameter, or of a part with a name */
  kAnyopAtenStepName = 4,     /* pops what that value is from now on */
  kAnyopAtenStepCall = 5, /* pops the arguments of that call, pushes its result or their tuple */
  kAnyopAtenStepItem = 6, /* of a tuple or a list, that element */
  kAnyopAtenStepInts = 7, /* pops so many values, pushes the list of them */
  kAnyopAtenStepBools = 8,
  kAnyopAtenStepTensors = 9,
  kAnyopAtenStepSize = 10, /* of a tensor, in that dimension; below 0: counted from the last */
  kAnyopAtenStepShape = 11,
  kAnyopAtenStepDtype = 12,
  kAnyopAtenStepIsCpu = 13,    /* whether a tensor lies in the memory of the host */
  kAnyopAtenStepIsNarrow = 14, /* whether the tensor on top, which stays there, has 16 bits */
  kAnyopAtenStepNumber = 15,   /* pops a tensor: the number is whole if that holds integers */
  kAnyopAtenStepIsNone = 16,
  kAnyopAtenStepEqual = 17, /* two numbers, texts or shapes */
  kAnyopAtenStepNot = 18,
  kAnyopAtenStepNegate = 19,
  kAnyopAtenStepArithmetic = 20, /* two numbers: '+', '-', '*', '/', '%' for // and '^' for ** */
  kAnyopAtenStepJump = 21,       /* to that step, which comes later */
  kAnyopAtenStepJumpUnless = 22, /* pops what decides */
  kAnyopAtenStepAnd = 23,        /* jumps where the top is false, pops it otherwise */
  kAnyopAtenStepOr = 24,
  kAnyopAtenStepResult = 25,  /* pops what is written to that result */
  kAnyopAtenStepResults = 26, /* pops the tuple of all */
  kAnyopAtenNumSteps = 27,
} AnyopAtenStepKind;

typedef struct AnyopAtenStep {
  int32_t kind;
  int32_t number;
} AnyopAtenStep;

typedef struct AnyopAtenPlanCall {
  void* op;                   /* of find */
  const AnyopAtenType* types; /* one for each argument; for ever */
  int32_t num_arguments;
  int32_t num_results;
} AnyopAtenPlanCall;

typedef struct AnyopAtenPlan {
  const AnyopAtenStep* steps;
  const AnyopAtenValue* constants; /* None, Int, Float, Bool, Str */
  const AnyopAtenPlanCall* calls;
  const AnyopAtenType* types; /* of the parameters: inputs, then results */
  int32_t num_steps;
  int32_t num_constants;
  int32_t num_calls;
  int32_t num_inputs;
  int32_t num_results;
  int32_t num_values; /* parameters, then parts with names */
  int32_t into;       /* the step where the way begins that writes into the results; -1: none */
  int32_t reserved;
} AnyopAtenPlan;

typedef struct AnyopTorchAtenGlue {
  uint32_t size;
  uint32_t version;          /* ANYOP_TORCH_ATEN_GLUE_VERSION */
  const char* torch_version; /* of the headers, as torch.__version__ says it */
  /* The overload ("aten::add", "Tensor"); NULL where this torch has none. Kept for ever. */
  void* (*find)(const char* name, const char* overload);
  /* arguments: one for each of types[0..num_arguments), checked against them, with defaults filled
     in and names looked up: tags are None, Int (dtypes, layouts, formats, too), Float, Bool,
     Complex, Str, Torch, MemoryOf, List, Seed, Generator, Device. A number for a Tensor is a
     wrapped number. results: as AnyopAtenCall says; lists and texts are malloc'ed. error: begins
     with an argument's name or is torch's. */
  int32_t (*call)(void* op, const AnyopAtenType* types, int32_t num_arguments,
                  const AnyopAtenValue* arguments, AnyopAtenValue* results, int32_t num_results,
                  const AnyopAtenOptions* options, char* error, int64_t error_bytes);
  void (*release)(AnyopAtenTensor* tensor);
  /* AnyopAtenView's. Of a meta tensor view is filled, with data NULL and device_type 0, and the
     status is kAnyopTypeError none the less. */
  int32_t (*view)(AnyopAtenTensor** tensor, AnyopTensor* view, uint32_t* flags, char* error,
                  int64_t error_bytes);
  /* Kept until free_plan; NULL where a step is none. */
  void* (*make_plan)(const AnyopAtenPlan* plan);
  void (*free_plan)(void* plan);
  /* values: one for each parameter; None: a result that is not wanted. Memory may have an owner:
     the c10::TensorImpl of an input that is a plain tensor of torch's, and of a result that torch
     has made for this call, which nobody else has yet. deferred: a bit of each result that has no
     memory; once all is done made[result] is an owned c10::TensorImpl. Plain kernels run.
     kAnyopPending: it was not done, and nothing is written but by an out= of memory that is no
     argument's: another way does it, or says why not. *kept: the parameter whose memory something
     still refers to, and finds no more; -1: none. */
  int32_t (*run_plan)(const void* plan, const AnyopAtenValue* values, uint64_t deferred,
                      void** made, const AnyopAtenOptions* options, int32_t* kept, char* error,
                      int64_t error_bytes);
} AnyopTorchAtenGlue;

typedef const AnyopTorchAtenGlue* (*AnyopTorchAtenGlueFunction)(
    void); /* the library exports AnyopTorchAtenGlueEntry */

#ifdef __cplusplus
}
#endif

#endif /* ANYOP_TORCH_ATEN_GLUE_H_ */
