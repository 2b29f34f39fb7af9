/* SPDX-License-Identifier: Apache-2.0 */
/* anyop/cuda/mma.h for HIP: what stands there in place of PTX is a function of the device, too. */
#ifndef ANYOP_HIP_CUDA_MMA_H_
#define ANYOP_HIP_CUDA_MMA_H_

#include "anyop/cuda.h"

#pragma clang force_cuda_host_device begin
#include_next "anyop/cuda/mma.h"
#pragma clang force_cuda_host_device end

#endif  // ANYOP_HIP_CUDA_MMA_H_
