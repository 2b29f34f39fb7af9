// SPDX-License-Identifier: Apache-2.0
// Products of matrices on CUDA by cuBLASLt.
#pragma once

#include "anyop/kernel.h"

namespace anyop::cublaslt {

struct Matrix {
  const void* data;
  int64_t row_stride, col_stride, batch_stride;  // in elements; any value
};

// What is done to sums before they are rounded; the numbers are cuBLASLt's.
enum Epilogue : uint32_t {
  kPlain = 1,
  kRelu = 2,
  kAddBias = 4,
  kGeluTanh = 32,
  kKeepInput = 128,           // of GELU, in aux
  kGeluTanhSlope = 64 | 128,  // times the derivative of GELU at aux
  kSumOfSlope = 16,           // with it: the sums over M go to bias
};

// What the scales of an operand of 8 bits are of; the numbers are cuBLASLt's.
enum ScaleMode : int32_t {
  kOfAll = 0,
  kOf128 = 4,         // of 128 along K; those of one K lie side by side
  kOf128Squares = 5,  // of 128 by 128; those of all K lie side by side, in rows of multiples of 4
};

// out = epilogue(a b + added + bias): a is M K, b is K N, in `batch` pairs. Sums are made in
// float32, float64 of float64, and rounded once. All starts are aligned to 16 bytes.
struct Product {
  AnyopDtype dtype = kAnyopNoDtype;      // of a and b
  AnyopDtype out_dtype = kAnyopNoDtype;  // of out and added
  int64_t M = 0, N = 0, K = 0, batch = 1;
  Matrix a = {}, b = {};
  void* out = nullptr;
  int64_t out_row_stride = 0, out_batch_stride = 0;  // rows lie without steps inside
  const void* added = nullptr;                       // may be out; of one product
  int64_t added_row_stride = 0;
  uint32_t epilogue = kPlain;
  void* bias = nullptr;  // N numbers of out_dtype
  void* aux = nullptr;   // of out_dtype, M N
  int64_t aux_row_stride = 0;
  const float *a_scale = nullptr, *b_scale = nullptr;  // of float8_e4m3fn
  ScaleMode a_scale_mode = kOfAll, b_scale_mode = kOfAll;
  bool tf32 = false;  // float32 may be rounded to TF32 first
};

// kAnyopDeclined where cuBLASLt is missing. *taken is false, and nothing was done, where it has no
// algorithm for this product; a matrix with steps in both directions is such a one.
int32_t Multiply(AnyopCall* call, const Product& product, bool* taken);

}  // namespace anyop::cublaslt
