// SPDX-License-Identifier: Apache-2.0
// The part of oneDNN 3's C interface that products and convolutions need, by declarations of our
// own: the library is looked up at run time, and no header of it is needed to build. Values are
// those of 3.2 to 3.8.
#pragma once

#include "anyop/kernel.h"

namespace anyop::dnnl {

using Engine = struct EngineTag*;
using Stream = struct StreamTag*;
using Desc = struct DescTag*;  // of a memory: sizes, strides, type
using Memory = struct MemoryTag*;
using Attr = struct AttrTag*;
using PrimitiveDesc = struct PrimitiveDescTag*;
using Primitive = struct PrimitiveTag*;
using Dims = int64_t[12];

constexpr int kOk = 0;
constexpr int kBFloat16 = 2, kFloat32 = 3;
constexpr int kCpu = 1;             // of engine_create
constexpr unsigned kInOrder = 1;    // of stream_create
constexpr int kScratchpadUser = 1;  // of set_scratchpad_mode
constexpr unsigned kOpenMp = 2;     // of Version::cpu_runtime
constexpr int kAvx2 = 7;            // bits of get_effective_cpu_isa
constexpr int kAvx512BF16 = 0xe7;
constexpr int kQueryImplementation = 8;                          // const char*
constexpr int kQueryScratchpad = 136;                            // a memory
constexpr int kQueryWeights = 131, kQueryWeightsGradient = 132;  // descriptors
constexpr int kAnyLayout = 1;                                    // of desc_create_with_tag
constexpr int kTraining = 64, kInference = 96;                   // of a convolution
constexpr int kDirect = 1;                                       // its algorithm
enum Argument : int {
  kSource = 1,
  kResult = 17,
  kWeights = 33,
  kBias = 41,
  kScratchpad = 80,
  kSourceGradient = 129,
  kResultGradient = 145,
  kWeightsGradient = 161,
};

struct Version {
  int major, minor, patch;
  const char* hash;
  unsigned cpu_runtime, gpu_runtime;
};

struct Given {
  int argument;
  Memory memory;
};

// X(name without dnnl_, result, arguments). What is created is destroyed by us; a descriptor that
// primitive_desc_query_md answers is borrowed.
#define ANYOP_DNNL_FUNCTIONS(X)                                                                  \
  X(version, const Version*, ())                                                                 \
  X(get_effective_cpu_isa, int, ())                                                              \
  X(engine_create, int, (Engine*, int kind, size_t index))                                       \
  X(engine_destroy, int, (Engine))                                                               \
  X(stream_create, int, (Stream*, Engine, unsigned flags))                                       \
  X(stream_destroy, int, (Stream))                                                               \
  X(memory_desc_create_with_strides, int,                                                        \
    (Desc*, int ndims, const Dims sizes, int type, const Dims strides))                          \
  X(memory_desc_create_with_tag, int, (Desc*, int ndims, const Dims sizes, int type, int tag))   \
  X(memory_desc_get_size, size_t, (const DescTag*)) /* bytes */                                  \
  X(memory_desc_destroy, int, (Desc))                                                            \
  X(memory_create, int, (Memory*, const DescTag*, Engine, void* data)) /* null: none yet */      \
  X(memory_set_data_handle, int, (Memory, void* data))                                           \
  X(memory_destroy, int, (Memory))                                                               \
  X(primitive_attr_create, int, (Attr*))                                                         \
  X(primitive_attr_set_scratchpad_mode, int, (Attr, int mode))                                   \
  X(primitive_attr_destroy, int, (Attr))                                                         \
  X(matmul_primitive_desc_create, int,                                                           \
    (PrimitiveDesc*, Engine, const DescTag* source, const DescTag* weights, const DescTag* bias, \
     const DescTag* result, const AttrTag*))                                                     \
  X(reorder_primitive_desc_create, int,                                                          \
    (PrimitiveDesc*, const DescTag* from, Engine, const DescTag* to, Engine, const AttrTag*))    \
  X(convolution_forward_primitive_desc_create, int,                                              \
    (PrimitiveDesc*, Engine, int kind, int algorithm, const DescTag* source,                     \
     const DescTag* weights, const DescTag* bias, const DescTag* result, const Dims strides,     \
     const Dims dilations, const Dims before, const Dims behind, const AttrTag*))                \
  X(convolution_backward_data_primitive_desc_create, int,                                        \
    (PrimitiveDesc*, Engine, int algorithm, const DescTag* source, const DescTag* weights,       \
     const DescTag* result, const Dims strides, const Dims dilations, const Dims before,         \
     const Dims behind, const PrimitiveDescTag* forward, const AttrTag*))                        \
  X(convolution_backward_weights_primitive_desc_create, int,                                     \
    (PrimitiveDesc*, Engine, int algorithm, const DescTag* source, const DescTag* weights,       \
     const DescTag* bias, const DescTag* result, const Dims strides, const Dims dilations,       \
     const Dims before, const Dims behind, const PrimitiveDescTag* forward, const AttrTag*))     \
  X(primitive_desc_query, int, (const PrimitiveDescTag*, int what, int index, void* result))     \
  X(primitive_desc_query_md, const DescTag*, (const PrimitiveDescTag*, int what, int index))     \
  X(primitive_desc_destroy, int, (PrimitiveDesc))                                                \
  X(primitive_create, int, (Primitive*, const PrimitiveDescTag*))                                \
  X(primitive_execute, int, (const PrimitiveTag*, Stream, int count, const Given*))              \
  X(primitive_destroy, int, (Primitive))

// An open oneDNN, its engine, and the setting of the OpenMP library that it uses.
struct Library {
#define ANYOP_X(name, result, arguments) \
  result(*name) arguments = nullptr; /* NOLINT(bugprone-macro-parentheses): a declaration */
  ANYOP_DNNL_FUNCTIONS(ANYOP_X)
#undef ANYOP_X
  void (*set_omp_threads)(int) = nullptr;
  int (*get_omp_threads)() = nullptr;
  Engine engine = nullptr;
  bool has_bfloat16 = false;  // on this CPU, fast
};

// Around what takes oneDNN's locks. A process that is forked meanwhile by another thread would find
// them held for ever: there GetLibrary finds none.
class Unforked {
 public:
  Unforked();
  Unforked(const Unforked&) = delete;
  Unforked& operator=(const Unforked&) = delete;
  ~Unforked();
};

// kAnyopOk and the library, nullptr where none is found, ANYOP_DNNL is "off" or it is not fast on
// this CPU for a dtype, bfloat16 or float32; or the status of a noted error, where ANYOP_DNNL names
// no oneDNN.
int32_t GetLibrary(AnyopCall* call, AnyopDtype dtype, const Library** library);

}  // namespace anyop::dnnl
