/* SPDX-License-Identifier: Apache-2.0 */
/* For CUDA kernels that sum over rows: the parts that their blocks have summed, added in order. */
#ifndef ANYOP_CUDA_PARTS_H_
#define ANYOP_CUDA_PARTS_H_

#include "anyop/cuda_row_operands.h"

namespace anyop::cuda {

// The results of sums over rows: tensors (D) of any floating dtype, NULL where not wanted.
template <int kSums>
struct SumsTo {
  char* data[kSums];
  AnyopDtype dtype[kSums];
};

// Block (b, s): 32 columns of sum s. A thread adds kPer columns (4, or 1) of the parts lane,
// lane + kLanes, ..., and the lanes meet in shared memory.
template <typename W, int kPer, int kSums>
__global__ void __launch_bounds__(256)
    AddParts(const W* parts, const SumsTo<kSums> to, int count, int64_t D) {
  constexpr int kColumns = 32 / kPer, kLanes = 256 / kColumns;
  __shared__ double sums[kLanes][33];  // hundreds of parts would lose digits in float32
  const int s = blockIdx.y;
  if (!to.data[s]) return;
  const int column = threadIdx.x % kColumns * kPer, lane = threadIdx.x / kColumns;
  const int64_t first = int64_t{blockIdx.x} * 32;
  double sum[kPer] = {};
  WaitForWork();
  if (first + column < D) {
    const auto* from = reinterpret_cast<const Vector<W, kPer>*>(parts + s * D + first + column);
    const int64_t step = kSums * (D / kPer);
    constexpr int kAhead = 5;  // on their way at once
#pragma unroll 1
    for (int i = lane; i < count; i += kAhead * kLanes) {
      Vector<W, kPer> part[kAhead] = {};
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        if (i + j * kLanes < count) part[j] = from[(i + j * kLanes) * step];
      }
#pragma unroll
      for (int k = 0; k < kPer; ++k) {
        W few = part[0].at[k];
#pragma unroll
        for (int j = 1; j < kAhead; ++j) few += part[j].at[k];
        sum[k] += few;
      }
    }
  }
#pragma unroll
  for (int k = 0; k < kPer; ++k) sums[lane][column + k] = sum[k];
  __syncthreads();
  // Eight threads for each column: few steps, one behind the other.
  const int d = threadIdx.x / 8, share = threadIdx.x % 8;
  double total = 0;
#pragma unroll
  for (int i = 0; i < kLanes; i += 8) total += sums[share + i][d];
  total = SumLanes(total, 8);
  if (share == 0 && first + d < D)
    WriteFloating<W>(to.data[s], first + d, to.dtype[s], static_cast<W>(total));
}

// parts: (count, kSums, D). Of 0 parts: zeros. overlaps: the kernel before calls LetNextStart.
template <typename W, int kSums>
int32_t RunAddParts(AnyopCall* call, const W* parts, const SumsTo<kSums>& to, int64_t count,
                    int64_t D, bool overlaps) {
  const Launch launch{dim3(static_cast<unsigned>(CeilDiv(D, 32)), kSums), dim3(256), 0, overlaps};
  const int n = static_cast<int>(count);
  return D % 4 ? launch.Run(call, AddParts<W, 1, kSums>, parts, to, n, D)
               : launch.Run(call, AddParts<W, 4, kSums>, parts, to, n, D);
}

}  // namespace anyop::cuda

#endif  // ANYOP_CUDA_PARTS_H_
