/* SPDX-License-Identifier: Apache-2.0 */
/* A libcuda.so.1 without a GPU, for tests/forms_image_test.py: devices of architecture FAKE_SM,
   whose memory is the process's. It knows one kernel, scale_kernel(const float*, float*, int64,
   float), and runs it. */
#include <elf.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kOk = 0, kInvalidValue = 1, kNoBinary = 209, kNotFound = 500 };

static int contexts[4], modules, pushed, exchanged, dynamic_shared = 48 * 1024;
static void* stack[8];

static int Architecture(void) { return atoi(getenv("FAKE_SM")); }

static int ArchitectureOf(const char* image, int* ptx) {
  *ptx = memcmp(image, ELFMAG, SELFMAG) != 0;
  if (!*ptx) return (int)(((const Elf64_Ehdr*)(const void*)image)->e_flags >> 8 & 0xff);
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
  *function = module;
  return strcmp(name, "scale_kernel") ? kNotFound : kOk;
}
int cuFuncGetParamInfo(void* function, size_t index, size_t* offset, size_t* bytes) {
  static const size_t kBytes[] = {8, 8, 8, 4};
  (void)function;
  if (index >= 4) return kInvalidValue;
  *offset = 8 * index;
  *bytes = kBytes[index];
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
int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void* stream, void** args, void** extra) {
  (void)function;
  (void)extra;
  if ((int)shared > dynamic_shared) return kInvalidValue;
  fprintf(stderr, "launch %u %u %u of %u %u %u shared %u stream %p context %td depth %d\n", gx, gy,
          gz, bx, by, bz, shared, stream, (int*)stack[pushed - 1] - contexts, pushed);
  const float* x = *(const float**)args[0];
  float* out = *(float**)args[1];
  const int64_t count = *(int64_t*)args[2], threads = (int64_t)gx * bx;
  for (int64_t i = 0; i < count && i < threads; ++i) out[i] = *(float*)args[3] * x[i];
  return kOk;
}
