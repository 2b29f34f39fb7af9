/* SPDX-License-Identifier: Apache-2.0 */
/* What a library of operators exports: data only. Written by codegen/, read by the core; C ABI,
 * append-only. */
#ifndef ANYOP_TABLE_H_
#define ANYOP_TABLE_H_

#include "anyop/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Raised only when an old core could not run a new table. A core reads every version from 1 to its
 * own. */
#define ANYOP_ABI_VERSION 1u

typedef enum AnyopKind {
  kAnyopTensor = 1,
  kAnyopInt = 2,
  kAnyopFloat = 3,
  kAnyopBoolean = 4,
  kAnyopStr = 5,
  kAnyopScalarType = 6, /* value: AnyopDtype */
} AnyopKind;

typedef enum AnyopParamFlag {
  kAnyopOptional = 1, /* T?: None is allowed; a result: made only when wanted */
  kAnyopList = 2,
  kAnyopMutated = 4, /* Tensor(a!) */
  kAnyopOutput = 8,
  kAnyopHasDefault = 16,
  kAnyopKeywordOnly = 32,
  kAnyopInplace = 64,   /* an output may be exactly this input; of a list: an element of a list that
                           is written may be exactly the element of the same number */
  kAnyopExpanded = 128, /* the kernel gets a view broadcast to the shape of the program, stride 0
                           where repeated */
  kAnyopOptionalElements =
      256,             /* Tensor?[]: elements may be None, and then have data NULL and ndim -1 */
  kAnyopCopied = 512,  /* an input that is only read: on the CPU, one that has not its layout is
                          copied for the kernel, by a core that knows this flag; else refused */
  kAnyopNumber = 1024, /* a tensor of one element for which a binding puts a number on the device.
                          In an operator with one, a tensor given for an attribute is refused */
} AnyopParamFlag;

typedef enum AnyopLayout {
  kAnyopContiguous = 0,
  kAnyopRows = 1, /* last dimension contiguous, any strides before it */
  kAnyopStrided = 2,
  kAnyopDense = 3, /* any order of dimensions, without gaps; the same strides in lists of one
                      length. A core from before it refuses the operator */
} AnyopLayout;

typedef enum AnyopDtypeRule {
  kAnyopOneOf = 0,   /* in dtype_set, or that of parameter dtype_a when dtype_a >= 0; a new result
                        takes the one it names */
  kAnyopPromote = 1, /* torch's promotion of parameters dtype_a and dtype_b; where dtype_b is -1,
                        with the one dtype of dtype_set: a core from before it refuses that */
  kAnyopFromAttribute =
      2,                /* ScalarType parameter dtype_a; where that is None, the dtype of dtype_b */
  kAnyopFirstGiven = 3, /* the dtype of optional tensor dtype_a; where that is absent, of dtype_b;
                           a core from before it refuses the operator */
} AnyopDtypeRule;

/* One parameter; inputs first, then outputs. AnyopOp::param_size is the distance between records.
 */
typedef struct AnyopParam {
  const char* name;
  const char* shape_text; /* for messages; NULL for what is no tensor */
  uint32_t offset;        /* of its field in the argument struct */
  int32_t shape;          /* word of its shape program in AnyopOp::code, -1 without */
  uint16_t flags;
  uint8_t kind;
  uint8_t layout;
  uint8_t dtype_rule;
  uint8_t align_log2; /* required alignment of data in bytes; 0: that of an element */
  int8_t dtype_a;     /* parameter, -1: none */
  int8_t dtype_b;
  uint64_t dtype_set; /* bit AnyopDtype */
  union {
    int64_t i; /* int, bool, ScalarType */
    double f;
    const char* s;     /* str; NULL: None */
    const void* list;  /* AnyopIntList, AnyopFloatList or AnyopStringList; NULL: None */
  } value;             /* the default */
  int32_t length;      /* of a list: symbol bound to the number of elements, -1: none */
  int32_t fixed_count; /* int[2]: exactly so many elements (one number is repeated), -1: any */
} AnyopParam;
ANYOP_STATIC_ASSERT(sizeof(AnyopParam) == 56 && offsetof(AnyopParam, offset) == 16);
ANYOP_STATIC_ASSERT(offsetof(AnyopParam, dtype_set) == 32 && offsetof(AnyopParam, value) == 40);

/* The shape language. Symbols 0..num_sizes-1 are sizes bound by shapes, the rest integer
   parameters. Groups 0..num_groups-1 are bound by shapes; the num_joins after them are broadcasts
   of earlier groups.

   A shape program is: before, after, group (-1: none), mode, then before + after terms.
     mode 0: the shape is exactly  before terms, the group's sizes, after terms.
     mode 1: the shape must be broadcastable to that (every letter in it is known by then).
   A term: 0..63 a symbol: bound when new, else compared. Above: an expression at word term - 64,
   compared. Below 0: a record {symbol, a, b} at word ~term: size = a * symbol + b, solved when the
   symbol is new. An expression is postfix, ended by kAnyopEnd; arithmetic is checked for overflow.
 */
typedef enum AnyopOpcode {
  kAnyopEnd = 0,
  kAnyopConst = 1,  /* one word follows */
  kAnyopSymbol = 2, /* one word follows */
  kAnyopRank = 3,   /* of a group; one word follows */
  kAnyopNumel = 4,  /* of a group; one word follows */
  kAnyopAdd = 5,
  kAnyopSub = 6,
  kAnyopMul = 7,
  kAnyopFloorDiv = 8, /* rounds down, as Python's // */
  kAnyopCeilDiv = 9,
  kAnyopMod = 10, /* sign of the divisor, as Python's % */
  kAnyopMin = 11,
  kAnyopMax = 12,
  kAnyopEq = 13,
  kAnyopNe = 14,
  kAnyopLt = 15,
  kAnyopLe = 16,
  kAnyopAnd = 17,
  kAnyopOr = 18,
  kAnyopTextIs = 19, /* 1 or 0: whether a text is this one. Words follow: the parameter, a str (its
                        text) or a tensor (the name of its dtype), the number of bytes, the bytes,
                        four a word, the first in its low end. That of a tensor in conditions and
                        shapes of results alone. A core from before it refuses the operator */
} AnyopOpcode;

/* A broadcast of groups: {count, group, group, ...} at this word of the code. */
typedef int32_t AnyopJoin;

/* Must be non-zero; text is how the schema states it. */
typedef struct AnyopCondition {
  const char* text;
  int32_t program;
  int32_t reserved;
} AnyopCondition;

typedef enum AnyopKernelFlag {
  kAnyopDeterministic = 1, /* the same bits in every run on the same device and number of threads */
} AnyopKernelFlag;

/* One implementation. AnyopOp::kernel_size is the distance between records: a record of an older
   library ends before name. */
typedef struct AnyopKernelEntry {
  const char* backend; /* "cpu", "cuda", ... */
  const char* source;  /* file name, for people */
  AnyopKernel run;     /* NULL: made by who knows the form, when it is first needed */
  int32_t device_type; /* 0: any */
  int32_t priority;    /* the highest is taken by default */
  const char* name;    /* of its own in the operator; NULL: the backend's */
  const char*
      when; /* which calls it takes, as in route files: "dtype=float32 D<=1024"; NULL: all */
  const char* form; /* of text: "aten", "python", "tvm_ffi"; NULL: compiled code */
  const char* text; /* what is called and how, JSON */
  uint32_t flags;   /* AnyopKernelFlag */
  uint32_t choices; /* ways the kernel can be told to go, AnyopCall::choice; 0: none */
} AnyopKernelEntry;
ANYOP_STATIC_ASSERT(sizeof(AnyopKernelEntry) == 72 && offsetof(AnyopKernelEntry, name) == 32);

/* One operator. Names of sizes are in symbols, for messages. */
typedef struct AnyopOp {
  uint32_t size;          /* sizeof(AnyopOp) where the table was compiled */
  uint32_t abi_version;   /* ANYOP_ABI_VERSION there */
  const char* name_space; /* "anyop" */
  const char* name;       /* "rms_norm" */
  const char* schema;
  const char* doc;      /* what Python's help shows; begins with a signature line */
  const char* metadata; /* JSON */
  const AnyopParam* params;
  const int32_t* code;
  const char* const* symbols; /* num_symbols names */
  const uint16_t* attributes; /* symbol num_sizes + i is integer parameter attributes[i] */
  const AnyopJoin* joins;     /* num_joins words */
  const AnyopCondition* conditions;
  const AnyopKernelEntry* kernels;
  uint32_t param_size;
  uint32_t kernel_size; /* distance between kernel entries */
  uint32_t num_inputs;
  uint32_t num_outputs;
  uint32_t args_size;
  uint32_t sizes_offset; /* of int64_t sizes[num_sizes], numels[num_groups + num_joins] in the
                            argument struct */
  uint32_t code_words;
  uint32_t num_symbols;
  uint32_t num_sizes;
  uint32_t num_groups;
  uint32_t num_joins;
  uint32_t num_conditions;
  uint32_t num_kernels;
  uint32_t reserved;
  uint64_t element_symbols; /* sizes bound anew for each element of a list of tensors */
  uint64_t element_groups;
  uint64_t
      args_hash; /* of the argument struct's fields: a kernel from elsewhere must show the same */
} AnyopOp;
ANYOP_STATIC_ASSERT(offsetof(AnyopOp, params) == 48 && offsetof(AnyopOp, param_size) == 104);
ANYOP_STATIC_ASSERT(sizeof(AnyopOp) == 184);

/* A library of operators exports one function, AnyopLibraryEntry, that returns this. */
typedef struct AnyopLibrary {
  uint32_t size;
  uint32_t abi_version;
  const char* name;
  const AnyopOp* const* ops;
  uint32_t num_ops;
  uint32_t reserved;
} AnyopLibrary;
ANYOP_STATIC_ASSERT(sizeof(AnyopLibrary) == 32);

typedef const AnyopLibrary* (*AnyopLibraryFunction)(void);

#ifdef __cplusplus
}
#endif

#endif /* ANYOP_TABLE_H_ */
