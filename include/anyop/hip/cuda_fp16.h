/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA's header of float16, by HIP's, whose names are the same. */
#ifndef ANYOP_HIP_CUDA_FP16_H_
#define ANYOP_HIP_CUDA_FP16_H_

#include <hip/hip_fp16.h>

#endif  // ANYOP_HIP_CUDA_FP16_H_
