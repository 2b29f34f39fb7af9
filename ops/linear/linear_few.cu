// SPDX-License-Identifier: Apache-2.0
// linear of at most eight rows in 16 bits, bound by the bytes of weight, on every GPU from Ampere
// on.
//
// A block has 16 rows of weight, the long side of mma.sync. Its eight warps share K, each takes
// every eighth 128 factors, and their sums are added in their order: a row's bits do not depend on
// the other rows. A lane reads 16 bytes of two rows of weight and of a row of x at a time, four
// such pieces ahead.
#include "anyop/cuda/mma.h"
#include "anyop/ops/linear.h"
#include "tile_problem.h"

namespace anyop::cuda {
namespace {

constexpr int kFewWarps = 8;
constexpr int kFewPieces = 4, kFewDepth = 32 * kFewPieces;  // factors of a batch

// What a lane has: two rows of weight, a row of x.
template <typename T>
struct FewRowsOf {
  const T *weight[2], *x;
  int K;
  bool has_x;

  __device__ static int At(int batch, int piece) {
    return batch * kFewDepth + 32 * piece + 8 * (threadIdx.x % 4);
  }
};

struct FewBatch {
  uint4 weight[2][kFewPieces], x[kFewPieces];

  template <typename T>
  __device__ void Read(const FewRowsOf<T>& from, int batch) {
#pragma unroll
    for (int i = 0; i < kFewPieces; ++i) {
      const int k = from.At(batch, i);
      const auto piece = [&](const T* row, bool is_there) {
        return is_there && k < from.K ? LoadNow(reinterpret_cast<const uint4*>(row + k)) : uint4{};
      };
      weight[0][i] = piece(from.weight[0], true), weight[1][i] = piece(from.weight[1], true);
      x[i] = piece(from.x, from.has_x);
    }
  }
  // Which factors stand in which place of mma.sync is free, as long as those of x stand in the
  // same.
  template <Operand kType>
  __device__ void AddTo(float (&sums)[4]) const {
#pragma unroll
    for (int i = 0; i < kFewPieces; ++i) {
      const uint4 &low = weight[0][i], &high = weight[1][i];
      const uint32_t first[4] = {low.x, high.x, low.y, high.y};
      const uint32_t second[4] = {low.z, high.z, low.w, high.w};
      MultiplyAdd<kType>(sums, first, x[i].x, x[i].y);
      MultiplyAdd<kType>(sums, second, x[i].z, x[i].w);
    }
  }
};

template <Operand kType, typename T>
__global__ __launch_bounds__(32 *
                             kFewWarps) void MultiplyFew(const __grid_constant__ TileProblem p) {
  __shared__ float parts[kFewWarps][128];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int left = blockIdx.x * 16, n = Lesser(left + lane / 4, p.N - 1);
  const int other = Lesser(left + 8 + lane / 4, p.N - 1);
  const auto* weight = static_cast<const T*>(p.weight);
  FewRowsOf<T> mine = {{weight + int64_t{n} * p.K, weight + int64_t{other} * p.K},
                       static_cast<const T*>(p.x) + int64_t{Lesser(lane / 4, p.rows - 1)} * p.K,
                       p.K,
                       lane / 4 < p.rows};
  const int batches = (p.K + kFewDepth - 1) / kFewDepth;
  float sums[4] = {};
  FewBatch next;
  next.Read(mine, warp);
  for (int i = warp; i < batches; i += kFewWarps) {
    const FewBatch now = next;
    if (i + kFewWarps < batches) next.Read(mine, i + kFewWarps);
    now.AddTo<kType>(sums);
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) parts[warp][4 * lane + c] = sums[c];
  __syncthreads();
  const int column = thread % 16, row = thread / 16;
  if (row >= p.rows || left + column >= p.N) return;
  const int at = (row / 2 + column % 8 * 4) * 4 + row % 2 + column / 8 * 2;
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kFewWarps; ++w) sum += parts[w][at];
  StoreOne(p.result, p.out, row * int64_t{p.N} + left + column,
           Finish(sum, 1, EndOf(p, 0, left + column)));
}

}  // namespace
}  // namespace anyop::cuda

// Its conditions say: at most eight rows, K a multiple of 8, aligned to 16 bytes.
extern "C" int32_t anyop_linear_cuda_few(const LinearArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  TileProblem p;
  if (int32_t status = PlainProblem(call, args->x, args->weight, args->bias, args->out, args->rows,
                                    args->N, args->K, &p))
    return status;
  if (p.rows == 0 || p.N == 0) return kAnyopOk;
  const Launch launch{dim3(static_cast<unsigned>(CeilDiv(p.N, 16))), dim3(32 * kFewWarps)};
  return p.result == kAnyopFloat16
             ? launch.Run(call, MultiplyFew<Operand::kFloat16, __half>, p)
             : launch.Run(call, MultiplyFew<Operand::kBFloat16, __nv_bfloat16>, p);
}
