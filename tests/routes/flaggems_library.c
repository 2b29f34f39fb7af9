/* SPDX-License-Identifier: Apache-2.0
   A stand-in of FlagGems's compiled library: torch.ops.flag_gems with relu as ATen has it, rms_norm
   as FlagGems has it, both for float32 on the CPU, and a silu with arguments that nobody knows. */
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef void* Tensor;
typedef void* Library;
typedef void (*Boxed)(uint64_t* stack, uint64_t inputs, uint64_t outputs);
int32_t aoti_torch_clone(Tensor self, Tensor* made);
int32_t aoti_torch_delete_tensor_object(Tensor self);
int32_t aoti_torch_get_data_ptr(Tensor self, void** data);
int32_t aoti_torch_get_numel(Tensor self, int64_t* numel);
int32_t aoti_torch_library_init_def(const char* space, const char* file, uint32_t line, Library*);
int32_t aoti_torch_library_init_impl(const char* space, const char* key, const char* file,
                                     uint32_t line, Library*);
int32_t aoti_torch_library_def(Library self, const char* schema);
int32_t aoti_torch_library_impl(Library self, const char* name, Boxed function);

/* A kernel owns the tensors that it is given. */
static float* Copy(uint64_t x, Tensor* made, int64_t* numel) {
  void* data;
  aoti_torch_clone((Tensor)x, made);
  aoti_torch_delete_tensor_object((Tensor)x);
  aoti_torch_get_numel(*made, numel);
  aoti_torch_get_data_ptr(*made, &data);
  return (float*)data;
}

static void Relu(uint64_t* stack, uint64_t inputs, uint64_t outputs) {
  Tensor made;
  int64_t numel;
  float* x = Copy(stack[0], &made, &numel);
  for (int64_t i = 0; i < numel; ++i) x[i] = x[i] > 0 ? x[i] : 0;
  stack[0] = (uint64_t)made;
}

static void RmsNorm(uint64_t* stack, uint64_t inputs, uint64_t outputs) {
  Tensor made;
  int64_t numel, width;
  void* weight;
  double eps, sum;
  float* x = Copy(stack[0], &made, &numel);
  aoti_torch_get_numel((Tensor)stack[1], &width);
  aoti_torch_get_data_ptr((Tensor)stack[1], &weight);
  memcpy(&eps, &stack[2], sizeof eps);
  for (int64_t r = 0; r < numel; r += width) {
    sum = 0;
    for (int64_t d = 0; d < width; ++d) sum += (double)x[r + d] * x[r + d];
    for (int64_t d = 0; d < width; ++d) {
      x[r + d] = (float)(x[r + d] / sqrt(sum / (double)width + eps) * ((float*)weight)[d]);
    }
  }
  aoti_torch_delete_tensor_object((Tensor)stack[1]);
  stack[0] = (uint64_t)made;
}

__attribute__((constructor)) static void Register(void) {
  Library library, kernels;
  aoti_torch_library_init_def("flag_gems", __FILE__, __LINE__, &library);
  aoti_torch_library_def(library, "relu(Tensor self) -> Tensor");
  aoti_torch_library_def(library, "rms_norm(Tensor input, Tensor weight, float epsilon) -> Tensor");
  aoti_torch_library_def(library, "silu(Tensor self, bool inplace) -> Tensor");
  aoti_torch_library_init_impl("flag_gems", "CPU", __FILE__, __LINE__, &kernels);
  aoti_torch_library_impl(kernels, "relu", Relu);
  aoti_torch_library_impl(kernels, "rms_norm", RmsNorm);
}
