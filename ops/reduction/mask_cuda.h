// SPDX-License-Identifier: Apache-2.0
// Elements of a mask of any dtype on CUDA: whether they are other than 0.
#pragma once

#include "anyop/cuda.h"

namespace anyop::cuda {

struct Mask {
  const void* data;
  int bits;
  bool floating;

  explicit Mask(const AnyopTensor* tensor)
      : data(tensor->data), bits(tensor->dtype_bits), floating(IsFloating(AnyopDtypeOf(tensor))) {}
  // 0 of either sign is none.
  __device__ bool operator[](int64_t at) const {
    switch (bits) {
      case 8:
        return static_cast<const uint8_t*>(data)[at] != 0;
      case 16:
        return static_cast<uint16_t>(static_cast<const uint16_t*>(data)[at] << floating) != 0;
      case 32:
        return static_cast<const uint32_t*>(data)[at] << floating != 0;
      default:
        return static_cast<const uint64_t*>(data)[at] << floating != 0;
    }
  }
};

}  // namespace anyop::cuda
