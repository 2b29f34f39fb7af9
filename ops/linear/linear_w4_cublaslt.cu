// SPDX-License-Identifier: Apache-2.0
// linear_w4 of many rows in 16 bits: some rows of weight at a time are unpacked, rounded to x's
// type, into memory that stays in the second cache, and multiplied by cuBLASLt.
#include <algorithm>

#include "anyop/ops/linear_w4.h"
#include "cuda_product.h"
#include "w4_cuda.h"

namespace anyop::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kPartBytes = 32 << 20;  // of the 50 MiB of an H100

// Row first + blockIdx.x of weight, eight numbers a thread; K is a multiple of 32.
template <typename T>
__global__ __launch_bounds__(kThreads) void UnpackRows(const __grid_constant__ FourBits w, T* to,
                                                       const int first) {
  T* const row = to + int64_t{blockIdx.x} * w.K;
  for (int k = threadIdx.x * 8; k < w.K; k += kThreads * 8) {
    uint32_t eight[4];
    UnpackEight<T>(w, first + static_cast<int>(blockIdx.x), k, eight);
    *reinterpret_cast<uint4*>(row + k) = make_uint4(eight[0], eight[1], eight[2], eight[3]);
  }
}

template <typename T>
int32_t RunParts(const LinearW4Args& args, AnyopCall* call) {
  const int64_t N = args.N, K = 2 * args.J;
  const FourBits w = FourBitsOf(args.weight, args.scale, args.zero, args.group_size, N, K);
  // As many rows each time, multiples of a tile's.
  const int64_t most = std::max<int64_t>(kPartBytes / (2 * K) / 256 * 256, 256);
  const int64_t parts = CeilDiv(N, most), each = CeilDiv(CeilDiv(N, parts), int64_t{256}) * 256;
  T* const memory = static_cast<T*>(call->workspace(call, std::min(each, N) * K * 2));
  if (!memory) return call->fail(call, kAnyopOutOfMemory, "no memory for unpacked weights");
  cublaslt::Product product;
  product.dtype = product.out_dtype = AnyopDtypeOf(args.x);
  product.M = args.rows, product.K = K;
  product.a = {args.x->data, K, 1, 0};
  product.b = {memory, 1, K, 0};
  product.out_row_stride = N;
  if (args.bias) product.epilogue = cublaslt::kAddBias;
  for (int64_t first = 0; first < N; first += each) {
    product.N = std::min(each, N - first);
    product.out = static_cast<T*>(args.out->data) + first;
    if (args.bias) product.bias = static_cast<T*>(args.bias->data) + first;
    const Launch unpack{dim3(static_cast<unsigned>(product.N)), dim3(kThreads)};
    if (const int32_t status = unpack.Run(call, UnpackRows<T>, w, memory, static_cast<int>(first)))
      return status;
    if (const int32_t status = Multiply(call, product)) return status;
  }
  return kAnyopOk;
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_linear_w4_cuda_cublaslt(const LinearW4Args* args, AnyopCall* call) {
  using namespace anyop::cuda;
  constexpr int64_t kMost = 0x7fffff00;
  if (args->N == 0 || args->rows == 0 || args->J == 0 || args->N > kMost || args->J > kMost / 2)
    return call->fail(call, kAnyopDeclined, "it takes some, and less than 2^31, of all");
  return AnyopDtypeOf(args->x) == kAnyopFloat16 ? RunParts<__half>(*args, call)
                                                : RunParts<__nv_bfloat16>(*args, call);
}
