// SPDX-License-Identifier: Apache-2.0
// Gradient of topk and of sort on CUDA: zeros, and grad_values at the places that the indices
// name, added up in their order in float32 (float64) where they name one more than once: the same
// bits each time. An index outside the row counts for nothing.
//
// The indices of a row are sorted (anyop/cuda/sort.h); a thread adds up those that are the same.
#include "anyop/cuda/row_operands.h"
#include "anyop/cuda/sort.h"
#include "anyop/ops/topk_backward.h"

namespace anyop::cuda {
namespace {

constexpr int kThreads = 256;

// Indices outside come last.
struct InRow {
  uint64_t D;
  __device__ uint64_t operator()(uint64_t index) const { return index < D ? index : ~uint64_t{0}; }
};

struct Runs {
  const uint64_t* sorted;  // (rows, K): indices
  const int64_t* places;   // (rows, K): where in their row
  const void* grad_values;
  void* grad_x;
  int64_t rows, K, D;
};

template <typename T>
__global__ void __launch_bounds__(kThreads) SumRuns(const __grid_constant__ Runs p) {
  const T* grad = static_cast<const T*>(p.grad_values);
  const int64_t count = p.rows * p.K, step = int64_t{gridDim.x} * kThreads;
  for (int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x; at < count; at += step) {
    const int64_t row = at / p.K, end = (row + 1) * p.K;
    const uint64_t index = p.sorted[at];
    if (index >= static_cast<uint64_t>(p.D)) continue;
    if (at > row * p.K && p.sorted[at - 1] == index) continue;
    Wide<T> sum = 0;
    for (int64_t i = at; i < end && p.sorted[i] == index; ++i)
      sum += Widen(grad[row * p.K + p.places[i]]);
    static_cast<T*>(p.grad_x)[row * p.D + static_cast<int64_t>(index)] = Narrow<T>(sum);
  }
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_topk_backward_cuda(const TopkBackwardArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  const int64_t rows = args->rows, K = args->K, D = args->D;
  if (rows == 0 || D == 0) return kAnyopOk;
  const int64_t bytes = args->grad_x->dtype_bits / 8;
  const auto error =
      cudaMemsetAsync(args->grad_x->data, 0, static_cast<size_t>(rows * D * bytes), StreamOf(call));
  if (int32_t status = Check(call, error, "writing zeros")) return status;
  if (K == 0) return kAnyopOk;
  auto* sorted =
      static_cast<uint64_t*>(call->workspace(call, rows * K * int64_t{2 * sizeof(int64_t)}));
  if (!sorted) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  auto* places = reinterpret_cast<int64_t*>(sorted + rows * K);
  int digits = 1;
  while (digits < 8 && D >> (digits * kDigitBits)) ++digits;
  const RowSort<uint64_t, InRow> sort = {static_cast<const uint64_t*>(args->indices->data),
                                         rows,
                                         K,
                                         K,
                                         sorted,
                                         places,
                                         InRow{static_cast<uint64_t>(D)},
                                         digits};
  if (int32_t status = RunRowSort(call, sort)) return status;
  const Runs p = {sorted, places, args->grad_values->data, args->grad_x->data, rows, K, D};
  const int64_t blocks = CeilDiv(rows * K, kThreads);
  const Launch launch{dim3(static_cast<unsigned>(blocks < 0x7fffffff ? blocks : 0x7fffffff)),
                      dim3(kThreads)};
  return WithFloating(AnyopDtypeOf(args->grad_x),
                      [&](auto zero) { return launch.Run(call, SumRuns<decltype(zero)>, p); });
}
