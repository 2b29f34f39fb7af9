// SPDX-License-Identifier: Apache-2.0
// Looks torch's C functions up. libtorch is loaded with local symbols, so each library is asked by
// name; none is opened.
#include "shim.h"

#include <dlfcn.h>

#include <cstdio>

#include "anyop/kernel.h"
#include "tensors/dtype.h"

namespace anyop::torch {
namespace {

char problem[256];

// dlopen finds a library that is loaded under this name; without it, nothing is loaded.
void* Loaded(const char* name) { return dlopen(name, RTLD_NOLOAD | RTLD_LAZY | RTLD_LOCAL); }

class Symbols {
 public:
  explicit Symbols(void* library) : library_(library) {}

  template <typename Function>
  void Need(const char* name, Function* function) {
    Try(name, function);
    if (!*function && !missing_) missing_ = name;
  }
  template <typename Function>
  void Try(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(library_ ? dlsym(library_, name) : nullptr);
  }
  const char* missing() const { return missing_; }

 private:
  void* library_;
  const char* missing_ = nullptr;
};

void FindDtypes(Symbols* symbols, Shim* shim) {
  for (uint8_t& dtype : shim->dtype_of) dtype = kAnyopNoDtype;
  for (int32_t& code : shim->torch_dtype) code = -1;
  for (int dtype = 0; dtype < kAnyopNumDtypes; ++dtype) {
    char name[64];
    std::snprintf(name, sizeof name, "aoti_torch_dtype_%s", DtypeName(dtype));
    int32_t (*code)();
    symbols->Try(name, &code);
    const int32_t value = code ? code() : -1;
    if (value < 0 || value >= 64) continue;
    shim->dtype_of[value] = static_cast<uint8_t>(dtype);
    shim->torch_dtype[dtype] = value;
  }
}

void FindForAten(Symbols* symbols, Shim* shim) {
  symbols->Need("aoti_torch_create_tensor_from_blob_v2", &shim->from_blob_2_9);
  symbols->Need("aoti_torch_new_tensor_handle", &shim->new_handle);
  symbols->Need("aoti_torch_new_uninitialized_tensor", &shim->undefined_tensor);
  symbols->Need("aoti_torch_is_defined", &shim->is_defined);
  symbols->Need("aoti_torch_get_layout", &shim->layout);
  symbols->Need("aoti_torch_layout_strided", &shim->layout_strided);
  symbols->Need("aoti_torch_grad_mode_is_enabled", &shim->grad_enabled);
  symbols->Need("aoti_torch_grad_mode_set_enabled", &shim->set_grad_enabled);
  symbols->Try("torch_new_list_reserve_size", &shim->new_list);
  symbols->Try("torch_list_push_back", &shim->push_back);
  symbols->Try("torch_new_string_handle", &shim->new_string);
  symbols->Try("torch_from_blob", &shim->from_blob);
}

const char* Find(Shim* shim) {
  void* cpu = Loaded("libtorch_cpu.so");
  if (!cpu) return "torch is not loaded: import torch first";
  Symbols symbols(cpu);
  symbols.Need("aoti_torch_library_init_fragment", &shim->library_fragment);
  symbols.Need("aoti_torch_library_init_impl", &shim->library_for_key);
  symbols.Need("aoti_torch_library_def", &shim->library_def);
  symbols.Need("aoti_torch_library_impl", &shim->library_impl_2_9);
  symbols.Need("aoti_torch_delete_tensor_object", &shim->delete_tensor);
  symbols.Need("aoti_torch_get_data_ptr", &shim->data_ptr);
  symbols.Need("aoti_torch_get_dim", &shim->dim);
  symbols.Need("aoti_torch_get_sizes", &shim->sizes);
  symbols.Need("aoti_torch_get_strides", &shim->strides);
  symbols.Need("aoti_torch_get_dtype", &shim->dtype);
  symbols.Need("aoti_torch_get_device_type", &shim->device_type);
  symbols.Need("aoti_torch_get_device_index", &shim->device_index);
  symbols.Need("aoti_torch_get_storage_size", &shim->storage_size);
  symbols.Need("aoti_torch_get_storage_offset", &shim->storage_offset);
  symbols.Need("aoti_torch_empty_strided", &shim->empty_strided);
  symbols.Need("aoti_torch_call_dispatcher", &shim->call_2_9);
  symbols.Need("aoti_torch_device_type_cpu", &shim->device_cpu);
  symbols.Need("aoti_torch_device_type_cuda", &shim->device_cuda);
  symbols.Need("aoti_torch_device_type_privateuse1", &shim->device_private);
  symbols.Try("torch_library_impl", &shim->library_impl);
  symbols.Try("torch_call_dispatcher", &shim->call);
  symbols.Try("torch_list_size", &shim->list_size);
  symbols.Try("torch_list_get_item", &shim->list_item);
  symbols.Try("torch_delete_list", &shim->delete_list);
  symbols.Try("torch_string_length", &shim->string_size);
  symbols.Try("torch_string_c_str", &shim->string_text);
  symbols.Try("torch_delete_string", &shim->delete_string);
  symbols.Try("torch_exception_get_what_without_backtrace", &shim->error_text);
  FindForAten(&symbols, shim);
  Symbols cuda(Loaded("libtorch_cuda.so"));
  cuda.Try("aoti_torch_get_current_cuda_stream", &shim->cuda_stream);
  if (symbols.missing()) {
    std::snprintf(problem, sizeof problem,
                  "this torch has no function %s; anyop needs torch 2.9 or newer",
                  symbols.missing());
    return problem;
  }
  FindDtypes(&symbols, shim);
  return nullptr;
}

}  // namespace

const Shim* LoadShim(const char** why) {
  struct Result {
    Shim shim = {};
    const char* problem;
    Result() : problem(Find(&shim)) {}
  };
  static const Result result;
  *why = result.problem;
  return result.problem ? nullptr : &result.shim;
}

}  // namespace anyop::torch
