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

#define ANYOP_TORCH_ATEN_GLUE_VERSION 1u

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
} AnyopTorchAtenGlue;

typedef const AnyopTorchAtenGlue* (*AnyopTorchAtenGlueFunction)(
    void); /* the library exports AnyopTorchAtenGlueEntry */

#ifdef __cplusplus
}
#endif

#endif /* ANYOP_TORCH_ATEN_GLUE_H_ */
