// SPDX-License-Identifier: Apache-2.0
// linear_fp8_block on CUDA by cuBLASLt, which wants the scales of x by columns and those of weight
// in rows of multiples of 4: others are copied.
#include "anyop/cuda.h"
#include "anyop/ops/linear_fp8_block.h"
#include "cuda_product.h"

namespace anyop::cuda {
namespace {

constexpr int kThreads = 256;

// to[row * to_stride + col] = from[row, col]
__global__ void CopyRows(const float* from, float* to, int64_t rows, int64_t cols,
                         int64_t row_stride, int64_t col_stride, int64_t to_stride) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x, row = i / cols;
  if (row < rows) to[row * to_stride + i % cols] = from[row * row_stride + i % cols * col_stride];
}

// rows x cols of scales whose rows begin at multiples of 16 bytes, which stands as they are or in a
// copy; the columns lie side by side.
int32_t LayScales(AnyopCall* call, const float* from, int64_t rows, int64_t cols,
                  int64_t row_stride, int64_t col_stride, int64_t wanted_stride,
                  const float** scales) {
  *scales = from;
  if ((col_stride == 1 || cols == 1) && (row_stride == wanted_stride || rows == 1) &&
      IsAligned(from, 16))
    return kAnyopOk;
  auto* copy =
      static_cast<float*>(call->workspace(call, rows * wanted_stride * int64_t{sizeof(float)}));
  if (!copy) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  *scales = copy;
  const Launch launch{dim3(static_cast<unsigned>(CeilDiv(rows * cols, kThreads))), dim3(kThreads)};
  return launch.Run(call, CopyRows, from, copy, rows, cols, row_stride, col_stride, wanted_stride);
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_linear_fp8_block_cuda_cublaslt(const LinearFp8BlockArgs* args,
                                                        AnyopCall* call) {
  using namespace anyop::cuda;
  const int64_t blocks = CeilDiv(args->K, 128);
  anyop::cublaslt::Product product;
  product.dtype = kAnyopFloat8E4M3FN;
  product.out_dtype = AnyopDtypeOf(args->out);
  product.M = args->M;
  product.N = args->N;
  product.K = args->K;
  product.a = {args->x->data, args->K, 1, 0};
  product.b = {args->weight->data, 1, args->K, 0};
  product.out = args->out->data;
  product.out_row_stride = args->N;
  product.a_scale_mode = anyop::cublaslt::kOf128;
  product.b_scale_mode = anyop::cublaslt::kOf128Squares;
  const int64_t* of_x = args->x_scale->strides;
  if (const int32_t status = LayScales(call, static_cast<const float*>(args->x_scale->data), blocks,
                                       args->M, of_x[1], of_x[0], args->M, &product.a_scale))
    return status;
  if (const int32_t status = LayScales(call, static_cast<const float*>(args->weight_scale->data),
                                       CeilDiv(args->N, 128), blocks, blocks, 1,
                                       CeilDiv(blocks, 4) * 4, &product.b_scale))
    return status;
  return MultiplyScaled(call, product);
}
