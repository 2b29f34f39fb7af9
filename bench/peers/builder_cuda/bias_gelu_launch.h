// SPDX-License-Identifier: Apache-2.0
// A CUDA kernel with raw pointers and its launch, as people have them before they move. Included by
// .cu files only.
#ifndef ANYOP_BENCH_PEERS_BIAS_GELU_LAUNCH_H_
#define ANYOP_BENCH_PEERS_BIAS_GELU_LAUNCH_H_

#include <cstdint>

// One thread an element. Reads 4 bytes (and the bias, from cache) and writes 4 for each.
static __global__ void BiasGeluKernel(const float* x, const float* bias, float* out, int64_t count,
                                      int64_t D) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const float a = x[i] + bias[i % D];
  out[i] = 0.5f * a * (1.0f + erff(a * 0.70710678f));
}

static cudaError_t LaunchBiasGelu(const float* x, const float* bias, float* out, int64_t rows,
                                  int64_t D, cudaStream_t stream) {
  const int64_t count = rows * D, blocks = (count + 255) / 256;
  if (count == 0) return cudaSuccess;
  BiasGeluKernel<<<static_cast<unsigned>(blocks), 256, 0, stream>>>(x, bias, out, count, D);
  return cudaGetLastError();
}

#endif  // ANYOP_BENCH_PEERS_BIAS_GELU_LAUNCH_H_
