/* SPDX-License-Identifier: Apache-2.0 */
/* anyop/cuda.h for HIP: what stands there in place of PTX is a function of the device, too. */
#ifndef ANYOP_HIP_CUDA_H_
#define ANYOP_HIP_CUDA_H_

#include <atomic>
#include <cstdio>
#include <type_traits>

#include "anyop/kernel.h"
#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "cuda_runtime_api.h"

#pragma clang force_cuda_host_device begin
#include_next "anyop/cuda.h"
#pragma clang force_cuda_host_device end

#endif  // ANYOP_HIP_CUDA_H_
