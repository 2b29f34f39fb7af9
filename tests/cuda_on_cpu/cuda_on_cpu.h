/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA C++ for the host compiler: what .cu files of operators use of it, run by fibers on one CPU.
 */
// A block is run at a time (all of them where they meet), its threads as fibers that switch where
// they wait for one another, so that indices, tails, shuffles, barriers and shared memory are those
// of the GPU. What it is not: fast, a check for races (a fiber runs until it waits), or Hopper:
// __CUDA_ARCH__ is not defined, as for a GPU without PTX, and the device says that its capability
// is 8.0, or with ANYOP_HOPPER_ON_CPU and the header of hopper/ 9.0.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

// ---- the language ----

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static /* of the one block that runs */
#define __constant__ static
#define __restrict__ __restrict
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

struct uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct float2 {
  float x, y;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

extern dim3 threadIdx, blockIdx, blockDim, gridDim;  // of the fiber that runs

namespace cuda_on_cpu {

#if ANYOP_HOPPER_ON_CPU
constexpr int kCapability = 9, kSharedBytes = 227 << 10;  // of a block
#else
constexpr int kCapability = 8, kSharedBytes = 163 << 10;
#endif

void WaitForBlock();                  // __syncthreads
void WaitForWarp();                   // __syncwarp of all lanes
uint64_t* SlotOfWarp(unsigned lane);  // written before, read behind WaitForWarp; two take turns
void* SharedMemory();                 // what the launch asked for
void WaitForGrid();                   // of blocks that run at once
void Poll();                          // all others run until they wait
uint64_t BlocksBegun();
// at_once: all blocks, by turns; else one behind the other.
int Run(dim3 grid, dim3 block, size_t shared_bytes, bool at_once,
        const std::function<void()>& kernel);

inline unsigned Lane() { return (threadIdx.x + blockDim.x * threadIdx.y) % 32; }
template <typename T>
T Exchange(T value, unsigned from) {
  std::memcpy(SlotOfWarp(Lane()), &value, sizeof value);
  const uint64_t* slot = SlotOfWarp(from % 32);
  WaitForWarp();
  std::memcpy(&value, slot, sizeof value);
  return value;
}
inline unsigned VotesOfWarp(int yes) {
  const uint64_t vote = yes != 0;
  std::memcpy(SlotOfWarp(Lane()), &vote, sizeof vote);
  const uint64_t* slots = SlotOfWarp(0);
  WaitForWarp();
  unsigned bits = 0;
  for (unsigned lane = 0; lane < 32; ++lane) bits |= unsigned{slots[lane] != 0} << lane;
  return bits;
}

}  // namespace cuda_on_cpu

#define ANYOP_DYNAMIC_SHARED cuda_on_cpu::SharedMemory()
#define ANYOP_WAIT_FOR_GRID cuda_on_cpu::WaitForGrid

inline void __syncthreads() { cuda_on_cpu::WaitForBlock(); }
inline int __syncthreads_or(int yes) {
  __shared__ int found;
  __syncthreads();
  found = 0;
  __syncthreads();
  if (yes) found = 1;
  __syncthreads();
  return found;
}
inline void __threadfence() {}
#if ANYOP_WAVE_ON_CPU
#include "wave_on_cpu.h"
#else
inline void __syncwarp(unsigned = ~0u) { cuda_on_cpu::WaitForWarp(); }
template <typename T>
T __shfl_xor_sync(unsigned, T v, int mask) {
  return cuda_on_cpu::Exchange(v, cuda_on_cpu::Lane() ^ mask);
}
template <typename T>
T __shfl_sync(unsigned, T v, int lane) {
  return cuda_on_cpu::Exchange(v, static_cast<unsigned>(lane));
}
template <typename T>
T __shfl_up_sync(unsigned, T v, unsigned by) {
  const unsigned lane = cuda_on_cpu::Lane();
  return cuda_on_cpu::Exchange(v, lane < by ? lane : lane - by);
}
template <typename T>
T __shfl_down_sync(unsigned, T v, unsigned by) {
  const unsigned lane = cuda_on_cpu::Lane();
  return cuda_on_cpu::Exchange(v, lane + by > 31 ? lane : lane + by);
}
inline unsigned __ballot_sync(unsigned, int yes) { return cuda_on_cpu::VotesOfWarp(yes); }
inline int __any_sync(unsigned mask, int yes) { return __ballot_sync(mask, yes) != 0; }
#endif
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(uint64_t{a} * b >> 32);
}
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __clz(int bits) { return bits ? __builtin_clz(static_cast<unsigned>(bits)) : 32; }

template <typename T>
T atomicAdd(T* at, T v) {
  const T old = *at;
  *at = old + v;
  return old;
}
template <typename T>
T atomicMax(T* at, T v) {
  const T old = *at;
  if (old < v) *at = v;
  return old;
}

// ---- arithmetic ----

template <typename To, typename From>
To BitsAs(From v) {
  static_assert(sizeof(To) == sizeof(From), "");
  To to;
  std::memcpy(&to, &v, sizeof to);
  return to;
}
inline float __uint_as_float(unsigned v) { return BitsAs<float>(v); }
inline unsigned __float_as_uint(float v) { return BitsAs<unsigned>(v); }
inline float __int_as_float(int v) { return BitsAs<float>(v); }
inline int __float_as_int(float v) { return BitsAs<int>(v); }
inline double __hiloint2double(int high, int low) {
  return BitsAs<double>(uint64_t{static_cast<unsigned>(high)} << 32 | static_cast<unsigned>(low));
}
inline int __double2hiint(double v) { return static_cast<int>(BitsAs<uint64_t>(v) >> 32); }
inline int __double2loint(double v) { return static_cast<int>(BitsAs<uint64_t>(v)); }
inline float rsqrtf(float v) { return 1 / std::sqrt(v); }
inline float __expf(float v) { return std::exp(v); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float v) { return 1 / v; }
inline int __float2int_rn(float v) { return static_cast<int>(std::nearbyint(v)); }
using std::fmax;
using std::fmin;
using std::isfinite;
using std::isinf;
using std::isnan;

struct __half {
  _Float16 v = 0;
};
struct alignas(4) __half2 {
  __half low, high;
};
inline float __half2float(__half v) { return static_cast<float>(v.v); }
inline __half __float2half_rn(float v) { return {static_cast<_Float16>(v)}; }
inline float __low2float(__half2 v) { return __half2float(v.low); }
inline float __high2float(__half2 v) { return __half2float(v.high); }
inline __half2 __floats2half2_rn(float low, float high) {
  return {__float2half_rn(low), __float2half_rn(high)};
}

struct __nv_bfloat16 {
  uint16_t bits = 0;
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 low, high;
};
inline float __bfloat162float(__nv_bfloat16 v) { return __uint_as_float(unsigned{v.bits} << 16); }
inline __nv_bfloat16 __float2bfloat16_rn(float v) {
  const unsigned bits = __float_as_uint(v);
  if (v != v) return {0x7fff};
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
inline __nv_bfloat162 __floats2bfloat162_rn(float low, float high) {
  return {__float2bfloat16_rn(low), __float2bfloat16_rn(high)};
}

// ---- the runtime ----

#define CUDART_VERSION 13000
typedef void* cudaStream_t;
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorStubLibrary = 34,
  cudaErrorInsufficientDriver = 35,
  cudaErrorECCUncorrectable = 214,
  cudaErrorHardwareStackError = 714,
  cudaErrorIllegalInstruction = 715,
  cudaErrorMisalignedAddress = 716,
  cudaErrorInvalidAddressSpace = 717,
  cudaErrorInvalidPc = 718,
  cudaErrorLaunchFailure = 719,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchTimeout = 702,
  cudaErrorAssert = 710,
  cudaErrorContextIsDestroyed = 709,
  cudaErrorCooperativeLaunchTooLarge = 720,
  cudaErrorNotSupported = 801,
};
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
inline const char* cudaGetErrorString(cudaError_t) { return "a launch that no GPU takes"; }
inline const char* cudaGetErrorName(cudaError_t) { return "cudaErrorInvalidConfiguration"; }

enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount,
  cudaDevAttrMaxSharedMemoryPerBlockOptin,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor,
  cudaDevAttrComputeCapabilityMajor,
  cudaDevAttrComputeCapabilityMinor,
};
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = 12;  // few, so that blocks walk
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = cuda_on_cpu::kSharedBytes;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = cuda_on_cpu::kSharedBytes + 1024;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = cuda_on_cpu::kCapability;
      return cudaSuccess;
    default:
      *value = 0;
      return cudaSuccess;
  }
}
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel, cudaFuncAttribute, int bytes) {
  return bytes <= cuda_on_cpu::kSharedBytes ? cudaSuccess : cudaErrorInvalidValue;
}
inline cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  std::memset(to, value, bytes);
  return cudaSuccess;
}

enum cudaStreamCaptureMode { cudaStreamCaptureModeRelaxed = 2 };
enum cudaMemcpyKind { cudaMemcpyDeviceToDevice = 3 };
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                                   cudaStream_t) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) {
  return cudaSuccess;
}

#include "anyop/hip/launch_config.h"

template <typename... Params, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...),
                               Arguments... arguments) {
  bool at_once = false;
  for (unsigned i = 0; i < config->numAttrs; ++i)
    at_once |= config->attrs[i].id == cudaLaunchAttributeCooperative;
#ifndef ANYOP_BLOCKS_MEET  // of a file without __shared__ variables, of which there is one of each
  if (at_once) return cudaErrorNotSupported;
#endif
  return static_cast<cudaError_t>(cuda_on_cpu::Run(config->gridDim, config->blockDim,
                                                   config->dynamicSmemBytes, at_once,
                                                   [&] { kernel(Params(arguments)...); }));
}
template <typename Kernel>
cudaError_t cudaOccupancyMaxActiveClusters(int* count, Kernel, const cudaLaunchConfig_t*) {
  *count = 0;  // there are none before Hopper
  return cudaSuccess;
}
