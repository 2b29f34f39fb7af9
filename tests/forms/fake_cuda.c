/* SPDX-License-Identifier: Apache-2.0 */
/* A libcuda.so.1 without a GPU, for tests/forms/forms_image_test.py: devices of architecture
   FAKE_SM, whose memory is the process's. It knows scale_kernel(const float*, float*, int64,
   float), and Triton's _rms_norm(x, weight, out, rows, D, x_stride, out_stride, eps, weight_offset,
   two pointers) of float32, and runs them. FAKE_PARAMS: how many parameters the latter seems to
   have. */
#include <elf.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kOk = 0, kInvalidValue = 1, kNoBinary = 209, kNotFound = 500 };

static int contexts[4], modules, pushed, exchanged, dynamic_shared = 48 * 1024;
static void* stack[8];
static const char *const kScale = "scale", *const kNorm = "norm";

static int Architecture(void) { return atoi(getenv("FAKE_SM")); }

static int ArchitectureOf(const char* image, int* ptx) {
  *ptx = memcmp(image, ELFMAG, SELFMAG) != 0;
  const Elf64_Ehdr* head = (const Elf64_Ehdr*)(const void*)image;
  if (!*ptx) return (int)(head->e_flags >> (head->e_ident[EI_ABIVERSION] >= 8 ? 8 : 0) & 0xff);
  const char* target = strstr(image, ".target sm_");
  return target ? atoi(target + 11) : 0;
}

int cuInit(unsigned flags) { return (int)flags; }
int cuGetErrorName(int error, const char** text) {
  *text = error == kNoBinary ? "CUDA_ERROR_NO_BINARY_FOR_GPU" : "CUDA_ERROR_FAKE";
  return kOk;
}
int cuGetErrorString(int error, const char** text) {
  *text = error == kNoBinary ? "no kernel image" : "an error";
  return kOk;
}
int cuDeviceGet(int* device, int index) {
  *device = index;
  return index < 4 ? kOk : 101;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  (void)device;
  *value = attribute == 75   ? Architecture() / 10
           : attribute == 76 ? Architecture() % 10
           : attribute == 97 ? 100 * 1024
                             : 0;
  return kOk;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = &contexts[device];
  return kOk;
}
int cuCtxGetCurrent(void** context) {
  *context = pushed ? stack[pushed - 1] : NULL;
  return kOk;
}
int cuCtxPushCurrent_v2(void* context) {
  stack[pushed++] = context;
  return kOk;
}
int cuCtxPopCurrent_v2(void** context) {
  *context = stack[--pushed];
  return kOk;
}
int cuThreadExchangeStreamCaptureMode(int* mode) {
  static int now;
  const int before = now;
  now = *mode;
  *mode = before;
  ++exchanged;
  return kOk;
}
int cuModuleLoadData(void** module, const void* image) {
  int ptx;
  const int wanted = ArchitectureOf(image, &ptx), here = Architecture();
  if (wanted > here || (!ptx && wanted / 10 != here / 10)) return kNoBinary;
  fprintf(stderr, "load %s %d context %td\n", ptx ? "ptx" : "cubin", wanted,
          (int*)stack[pushed - 1] - contexts);
  *module = (void*)(uintptr_t)image;
  ++modules;
  return kOk;
}
int cuModuleUnload(void* module) {
  --modules;
  return module ? kOk : kInvalidValue;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  const int is_norm = !strcmp(name, "_rms_norm");
  *function = (void*)(uintptr_t)(is_norm ? kNorm : kScale);
  return module && (is_norm || !strcmp(name, "scale_kernel")) ? kOk : kNotFound;
}
int cuFuncGetParamInfo(void* function, size_t index, size_t* offset, size_t* bytes) {
  static const size_t kBytes[] = {8, 8, 8, 4}, kNorms[] = {8, 8, 8, 4, 4, 4, 4, 4, 4, 8, 8};
  const char* seems = getenv("FAKE_PARAMS");
  const size_t count = function == kScale ? 4 : seems ? (size_t)atoi(seems) : 11;
  if (index >= count) return kInvalidValue;
  *offset = 8 * index;
  *bytes = function == kScale ? kBytes[index] : kNorms[index];
  return kOk;
}
int cuFuncGetAttribute(int* value, int attribute, void* function) {
  (void)function;
  *value = attribute == 1 ? 1024 : 0;
  return kOk;
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
  (void)function;
  if (attribute == 8) dynamic_shared = value;
  return kOk;
}
/* By float64. */
static void Norm(void** args, unsigned blocks) {
  const float *x = *(const float**)args[0], *weight = *(const float**)args[1];
  float* out = *(float**)args[2];
  const int rows = *(int*)args[3], D = *(int*)args[4];
  const int x_stride = *(int*)args[5], out_stride = *(int*)args[6];
  const double eps = *(float*)args[7], weight_offset = *(float*)args[8];
  fprintf(stderr, "norm of %d x %d strides %d %d hidden %p %p aligned %d\n", rows, D, x_stride,
          out_stride, *(void**)args[9], *(void**)args[10], (uintptr_t)x % 16 == 0);
  if (!blocks) return;
  for (int r = 0; r < rows; ++r) {
    double squares = 0, scale = 1;
    for (int d = 0; d < D; ++d) squares += (double)x[r * x_stride + d] * x[r * x_stride + d];
    squares = squares / D + eps;
    for (int i = 0; i < 60; ++i) scale = 0.5 * (scale + 1 / (squares * scale)); /* Newton's */
    for (int d = 0; d < D; ++d)
      out[r * out_stride + d] = (float)(x[r * x_stride + d] * scale * (weight[d] + weight_offset));
  }
}

int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void* stream, void** args, void** extra) {
  (void)extra;
  if ((int)shared > dynamic_shared) return kInvalidValue;
  fprintf(stderr, "launch %u %u %u of %u %u %u shared %u stream %p context %td depth %d\n", gx, gy,
          gz, bx, by, bz, shared, stream, (int*)stack[pushed - 1] - contexts, pushed);
  if (function == kNorm) return Norm(args, gx), kOk;
  const float* x = *(const float**)args[0];
  float* out = *(float**)args[1];
  const int64_t count = *(int64_t*)args[2], threads = (int64_t)gx * bx;
  for (int64_t i = 0; i < count && i < threads; ++i) out[i] = *(float*)args[3] * x[i];
  return kOk;
}

/* CUlaunchConfig, with the attributes of num_attributes. */
typedef struct Config {
  unsigned grid[3], block[3], shared;
  void* stream;
  const struct {
    int id, padding;
    unsigned value[16];
  }* attributes;
  unsigned num_attributes;
} Config;

int cuLaunchKernelEx(const Config* c, void* function, void** args, void** extra) {
  for (unsigned i = 0; i < c->num_attributes; ++i)
    fprintf(stderr, "attribute %d is %u %u %u\n", c->attributes[i].id, c->attributes[i].value[0],
            c->attributes[i].value[1], c->attributes[i].value[2]);
  return cuLaunchKernel(function, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1],
                        c->block[2], c->shared, c->stream, args, extra);
}
