// SPDX-License-Identifier: Apache-2.0
// Products of matrices on CUDA, of any sizes and strides, batched and summed.
#pragma once

#include "cublaslt_product.h"

namespace anyop::cuda {

constexpr int kMaxDims = 32;

// Some leading dimensions: sizes, and how far apart a, b and out lie in them.
struct Leading {
  int dims = 0;
  int64_t size[kMaxDims], a[kMaxDims], b[kMaxDims], out[kMaxDims];

  void Put(int64_t size_of, int64_t a_stride, int64_t b_stride, int64_t out_stride);
  int64_t count() const;
};

// A product for each place of `batch`, in which out is contiguous, summed over `sum`. The product's
// own batch is 1. kAnyopDeclined where cuBLASLt is missing or has no algorithm.
int32_t Multiply(AnyopCall* call, cublaslt::Product product, const Leading& batch = {},
                 const Leading& sum = {});

// One product with an epilogue, of contiguous results; what does not start at 16 bytes is copied,
// so that bits do not hang on it. *taken is false, and nothing was done, where cuBLASLt has none.
int32_t MultiplyWithEpilogue(AnyopCall* call, const cublaslt::Product& product, bool* taken);

// One product of float8_e4m3fn; kAnyopDeclined where cuBLASLt has none.
int32_t MultiplyScaled(AnyopCall* call, const cublaslt::Product& product);

}  // namespace anyop::cuda
