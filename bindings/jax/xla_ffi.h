// SPDX-License-Identifier: Apache-2.0
// The part of XLA's foreign function interface that one handler needs: its C ABI, declared anew.
// tests/jax/jax_abi_test.py compares it with the header that jaxlib ships.
#pragma once

#include <cstddef>
#include <cstdint>

namespace anyop::xla {

// The version of the interface that these declarations were compared with, and the oldest one that
// has all of them. The handler says it is of the newest version that XLA knows too.
constexpr int32_t kApiMajor = 0;
constexpr int32_t kApiMinor = 3;
constexpr int32_t kOldestApiMinor = 1;

enum class Stage : int32_t { kInstantiate = 0, kPrepare = 1, kInitialize = 2, kExecute = 3 };
enum class Attribute : int32_t { kArray = 1, kDictionary = 2, kScalar = 3, kString = 4 };
enum class Argument : int32_t { kBuffer = 1 };
enum class Code : int32_t {
  kInvalidArgument = 3,
  kResourceExhausted = 8,
  kUnimplemented = 12,
  kInternal = 13,
};
enum class Type : int32_t {
  kInvalid = 0,
  kPred = 1,
  kS8 = 2,
  kS16 = 3,
  kS32 = 4,
  kS64 = 5,
  kU8 = 6,
  kU16 = 7,
  kU32 = 8,
  kU64 = 9,
  kF16 = 10,
  kF32 = 11,
  kF64 = 12,
  kC64 = 15,
  kBF16 = 16,
  kC128 = 18,
  kF8E5M2 = 19,
  kF8E4M3FN = 20,
};

struct Error;    // opaque; made by Api::error_create, owned by whoever gets it
struct Context;  // opaque

struct Extension {
  size_t struct_size;
  int32_t type;
  Extension* next;
};
constexpr int32_t kMetadataExtension = 1;

struct ApiVersion {
  size_t struct_size;
  Extension* extensions;
  int32_t major;
  int32_t minor;
};

// XLA's has more behind it.
struct Metadata {
  size_t struct_size;
  ApiVersion version;
  uint32_t traits;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct Bytes {
  const char* data;
  size_t size;
};

struct Scalar {
  Type type;
  void* value;
};

struct Array {
  Type type;
  size_t size;
  void* data;
};

struct Buffer {
  size_t struct_size;
  Extension* extensions;
  Type type;
  void* data;
  int64_t rank;
  int64_t* dims;
};

struct Buffers {  // arguments, and results alike
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  Argument* types;
  void** buffers;
};

struct Attributes {  // sorted by name
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  Attribute* types;
  Bytes** names;
  void** values;
};

struct ErrorCreateArgs {
  size_t struct_size;
  Extension* extensions;
  const char* message;
  Code code;
};

struct StreamGetArgs {
  size_t struct_size;
  Extension* extensions;
  Context* context;
  void* stream;  // out
};

struct DeviceOrdinalGetArgs {
  size_t struct_size;
  Extension* extensions;
  Context* context;
  int32_t ordinal;  // out
};

struct Api {
  size_t struct_size;
  Extension* extensions;
  ApiVersion version;
  const void* internal;
  Error* (*error_create)(ErrorCreateArgs* args);
  void* others_1[3];
  Error* (*stream_get)(StreamGetArgs* args);
  void* others_2[12];
  Error* (*device_ordinal_get)(DeviceOrdinalGetArgs* args);
};

struct CallFrame {
  size_t struct_size;
  Extension* extensions;
  const Api* api;
  Context* context;
  Stage stage;
  Buffers args;
  Buffers results;
  Attributes attributes;
};

static_assert(sizeof(Extension) == 24 && sizeof(ApiVersion) == 24);
static_assert(offsetof(Metadata, traits) == 32 && offsetof(MetadataExtension, metadata) == 24);
static_assert(sizeof(Buffer) == 48 && offsetof(Buffer, data) == 24);
static_assert(sizeof(Buffers) == 40 && sizeof(Attributes) == 48);
static_assert(offsetof(Api, error_create) == 48 && offsetof(Api, stream_get) == 80);
static_assert(offsetof(Api, device_ordinal_get) == 184);
static_assert(offsetof(CallFrame, args) == 40 && offsetof(CallFrame, attributes) == 120);

}  // namespace anyop::xla
