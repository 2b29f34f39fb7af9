// SPDX-License-Identifier: Apache-2.0
// Rows times rows on Hopper: a warpgroup multiplies tiles of 64 x 128 by wgmma, while TMA brings
// the next ones.
#include "anyop/cuda/hopper.h"
#include "hopper/ops/product.h"

namespace {
using namespace anyop::cuda;

constexpr int kRows = 64, kColumns = 128, kStages = 4, kDepth = 64;  // 64 of k are 128 bytes
constexpr uint32_t kXBytes = kRows * 128, kStageBytes = kXBytes + kColumns * 128;

__global__ __launch_bounds__(128) void Multiply(const __grid_constant__ CUtensorMap x,
                                                const __grid_constant__ CUtensorMap weight,
                                                __nv_bfloat16* out, int M, int N, int K) {
  extern __shared__ __align__(1024) uint8_t shared[];
  __shared__ uint64_t full[kStages];
  const uint32_t ring = SharedAddress(shared), barriers = SharedAddress(full);
  const int row = blockIdx.y * kRows, column = blockIdx.x * kColumns;
  const int steps = (K + kDepth - 1) / kDepth;
  const auto load = [&](int step) {  // by one thread; what lies outside of a matrix is 0
    const uint32_t to = ring + step % kStages * kStageBytes;
    const uint32_t barrier = barriers + step % kStages * 8;
    ArriveForBytes(barrier, kStageBytes);
    LoadBox(to, &x, barrier, step * kDepth, row);
    LoadBox(to + kXBytes, &weight, barrier, step * kDepth, column);
  };
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) InitBarrier(barriers + 8 * i, 1);
    FenceBarriers();
    for (int i = 0; i < kStages && i < steps; ++i) load(i);
  }
  __syncthreads();  // the barriers are there

  float sums[kColumns / 2];  // 64 x 128 over 128 threads
  RingPlace<kStages> at;
  for (int step = 0; step < steps; ++step, at.Next()) {
    const uint64_t x_tile = TileOf(ring + at.stage * kStageBytes);
    const uint64_t weight_tile = TileOf(ring + at.stage * kStageBytes + kXBytes);
    WaitAt(barriers + 8 * at.stage, at.parity);
    FenceProducts();
#pragma unroll
    for (int i = 0; i < kDepth / 16; ++i)  // 16 of k, 32 bytes, at once; the first begins the sums
      Product<kColumns>::Add<Operand::kBFloat16>(sums, x_tile + 2 * i, weight_tile + 2 * i,
                                                 step + i);
    CommitProducts();
    WaitForProducts<0>();
    Pin(sums);
    __syncthreads();  // all four warps have read the stage
    if (threadIdx.x == 0 && step + kStages < steps) load(step + kStages);
  }

  const int thread = threadIdx.x, first = row + thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) {  // Product says which sum is whose
    const int m = first + i / 2 % 2 * 8, n = column + i / 4 * 8 + thread % 4 * 2 + i % 2;
    if (m < M && n < N) out[int64_t{m} * N + n] = __float2bfloat16(sums[i]);
  }
}

bool Describe(CUtensorMap* map, const AnyopTensor& x, int box_rows) {
  return EncodeMap(map, {x.data, x.shape[0], x.shape[1], 2 * x.shape[1],
                         CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, box_rows});
}

}  // namespace

extern "C" int32_t hopper_product_cuda_sm90(const ProductArgs* args, AnyopCall* call) {
  if (args->M == 0 || args->N == 0) return kAnyopOk;  // a grid of 0 blocks is an error
  constexpr int64_t kMost = 65535 * kRows;
  CUtensorMap x, weight;
  if (args->M > kMost || args->N > kMost || args->K > kMost || !Describe(&x, *args->x, kRows) ||
      !Describe(&weight, *args->weight, kColumns))
    return call->fail(call, kAnyopDeclined, "it takes what TMA can describe, up to 4,194,240 rows");
  constexpr uint32_t kBytes = kStages * kStageBytes;
  if (int32_t status = AllowShared<Multiply>(call, kBytes)) return status;
  const int M = static_cast<int>(args->M), N = static_cast<int>(args->N);
  const dim3 tiles((N + kColumns - 1) / kColumns, (M + kRows - 1) / kRows);
  return Launch{tiles, dim3(128), kBytes}.Run(call, Multiply, x, weight,
                                              static_cast<__nv_bfloat16*>(args->out->data), M, N,
                                              static_cast<int>(args->K));
}
