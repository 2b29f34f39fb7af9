// SPDX-License-Identifier: Apache-2.0
// torch's C shim as this binding sees it: own prototypes, looked up in the torch that is loaded.
// Floor: torch 2.9.
#pragma once

#include <cstddef>
#include <cstdint>

namespace anyop::torch {

using TensorHandle = struct AtenTensorOpaque*;
using LibraryHandle = struct TorchLibraryOpaque*;
using ListHandle = struct StableListOpaque*;
using StringHandle = struct StringOpaque*;
using Value = uint64_t;  // StableIValue: a number, a handle, or for an optional a pointer to one
using BoxedKernel = void (*)(Value* stack, uint64_t num_arguments, uint64_t num_results);

// What torch_library_impl and torch_call_dispatcher are told: values are converted as torch 2.10
// does, for ever.
constexpr uint64_t kBuiltFor = uint64_t{2} << 56 | uint64_t{10} << 48;

// Every function returns 0 when it worked, those of dtypes and devices their code. Those behind the
// comment are newer than the floor, and nullptr where torch lacks them.
struct Shim {
  int32_t (*library_fragment)(const char* name_space, const char* file, uint32_t line,
                              LibraryHandle*);
  int32_t (*library_for_key)(const char* name_space, const char* key, const char* file,
                             uint32_t line, LibraryHandle*);
  int32_t (*library_def)(LibraryHandle, const char* schema);
  int32_t (*library_impl_2_9)(LibraryHandle, const char* name, BoxedKernel);
  int32_t (*delete_tensor)(TensorHandle);
  int32_t (*data_ptr)(TensorHandle, void**);
  int32_t (*dim)(TensorHandle, int64_t*);
  int32_t (*sizes)(TensorHandle, int64_t**);
  int32_t (*strides)(TensorHandle, int64_t**);
  int32_t (*dtype)(TensorHandle, int32_t*);
  int32_t (*device_type)(TensorHandle, int32_t*);
  int32_t (*device_index)(TensorHandle, int32_t*);
  int32_t (*storage_size)(TensorHandle, int64_t*);
  int32_t (*storage_offset)(TensorHandle, int64_t*);
  int32_t (*empty_strided)(int64_t ndim, const int64_t* sizes, const int64_t* strides,
                           int32_t dtype, int32_t device_type, int32_t device_index, TensorHandle*);
  int32_t (*call_2_9)(const char* name, const char* overload, Value* stack);
  int32_t (*device_cpu)();
  int32_t (*device_cuda)();
  int32_t (*device_private)();
  // 2.10
  int32_t (*library_impl)(LibraryHandle, const char* name, BoxedKernel, uint64_t built_for);
  int32_t (*call)(const char* name, const char* overload, Value* stack, uint64_t built_for);
  int32_t (*list_size)(ListHandle, size_t*);
  int32_t (*list_item)(ListHandle, size_t, Value*);
  int32_t (*delete_list)(ListHandle);
  int32_t (*string_size)(StringHandle, size_t*);
  int32_t (*string_text)(StringHandle, const char**);
  int32_t (*delete_string)(StringHandle);
  // 2.13
  const char* (*error_text)();
  // Only in builds for CUDA.
  int32_t (*cuda_stream)(int32_t device, void** stream);

  // By torch's dispatcher, in either form.
  int32_t Call(const char* name, const char* overload, Value* stack) const {
    return call ? call(name, overload, stack, kBuiltFor) : call_2_9(name, overload, stack);
  }

  // For calls of ATen; all in 2.9 but those behind the comments.
  int32_t (*from_blob_2_9)(void* data, int64_t ndim, const int64_t* sizes, const int64_t* strides,
                           int64_t storage_offset, int32_t dtype, int32_t device_type,
                           int32_t device_index, TensorHandle*, int32_t layout,
                           const uint8_t* opaque, int64_t opaque_bytes);
  int32_t (*new_handle)(TensorHandle, TensorHandle*);
  int32_t (*undefined_tensor)(TensorHandle*);
  int32_t (*is_defined)(TensorHandle, bool*);
  int32_t (*layout)(TensorHandle, int32_t*);
  int32_t (*layout_strided)();
  bool (*grad_enabled)();
  void (*set_grad_enabled)(bool);
  // 2.10
  int32_t (*new_list)(size_t count, ListHandle*);
  int32_t (*push_back)(ListHandle, Value);
  int32_t (*new_string)(const char* text, size_t bytes, StringHandle*);
  // 2.11
  int32_t (*from_blob)(void* data, int64_t ndim, const int64_t* sizes, const int64_t* strides,
                       int64_t storage_offset, int32_t dtype, int32_t device_type,
                       int32_t device_index, TensorHandle*, int32_t layout, const uint8_t* opaque,
                       int64_t opaque_bytes, void (*deleter)(void* data, void* context),
                       void* context);

  // Of torch's dtype codes; kAnyopNoDtype where there is none. And back, -1 where there is none.
  uint8_t dtype_of[64];
  int32_t torch_dtype[32];
};

// The loaded torch's shim. nullptr with *why set when none is loaded or a function of the floor is
// missing.
const Shim* LoadShim(const char** why);

}  // namespace anyop::torch
