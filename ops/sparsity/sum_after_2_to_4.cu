// SPDX-License-Identifier: Apache-2.0
// sum_after_2_to_4 on CUDA: blocks share a matrix, whose stripes of rows their threads take; a
// second kernel adds the sums of the blocks. The order depends on the shape alone.
#include "anyop/cuda/rows.h"
#include "anyop/ops/sum_after_2_to_4.h"
#include "two_of_four.h"

namespace anyop::cuda {
namespace {

constexpr int kSumThreads = 256;
constexpr int64_t kEnoughBlocks = 1024;

// of_matrix: stripes of the rows of a matrix; shares: blocks of a matrix.
__global__ void __launch_bounds__(kSumThreads)
    AddStripes(const float* data, int64_t matrices, int64_t of_matrix, int64_t shares,
               double* sums) {
  __shared__ Partials<double> partials;
  RowTeam<double> team(kSumThreads, partials);
  for (int64_t block = blockIdx.x; block < matrices * shares; block += gridDim.x) {
    const float* matrix = data + block / shares * of_matrix * 4;
    double sum = 0;
    for (int64_t i = block % shares * kSumThreads + threadIdx.x; i < of_matrix;
         i += shares * kSumThreads) {
      const float* x = matrix + 4 * i;
      sum += Kept(x[0], x[1], x[2], x[3]);
    }
    sum = team.Total(sum);
    if (threadIdx.x == 0) sums[block] = sum;
  }
}

__global__ void __launch_bounds__(kSumThreads)
    AddShares(const double* sums, int64_t matrices, int64_t shares, float* out) {
  __shared__ Partials<double> partials;
  RowTeam<double> team(kSumThreads, partials);
  for (int64_t matrix = blockIdx.x; matrix < matrices; matrix += gridDim.x) {
    double sum = 0;
    for (int64_t i = threadIdx.x; i < shares; i += kSumThreads) sum += sums[matrix * shares + i];
    sum = team.Total(sum);
    if (threadIdx.x == 0) out[matrix] = static_cast<float>(sum);
  }
}

inline Launch LaunchOf(int64_t blocks) {
  return {dim3(static_cast<unsigned>(blocks < 0x7fffffff ? blocks : 0x7fffffff)),
          dim3(kSumThreads)};
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_sum_after_2_to_4_cuda(const SumAfter2To4Args* args, AnyopCall* call) {
  using namespace anyop;
  using namespace anyop::cuda;
  const int64_t matrices = args->rows, of_matrix = args->R * args->S;
  if (matrices == 0) return kAnyopOk;
  const int64_t needed = CeilDiv(of_matrix, kSumThreads), most = CeilDiv(kEnoughBlocks, matrices);
  const int64_t shares = needed < 1 ? 1 : needed < most ? needed : most;
  const auto bytes = static_cast<int64_t>(matrices * shares * sizeof(double));
  auto* sums = static_cast<double*>(call->workspace(call, bytes));
  if (!sums) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  if (const int32_t status =
          LaunchOf(matrices * shares)
              .Run(call, AddStripes, static_cast<const float*>(args->matrix->data), matrices,
                   of_matrix, shares, sums))
    return status;
  return LaunchOf(matrices).Run(call, AddShares, static_cast<const double*>(sums), matrices, shares,
                                static_cast<float*>(args->out->data));
}
