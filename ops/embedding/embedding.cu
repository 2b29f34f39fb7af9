// SPDX-License-Identifier: Apache-2.0
// embedding on CUDA: the lanes of a row copy it in units of up to 16 bytes, four of them on their
// way. 2 D elements moved for each index. Of an index outside the table: zeros.
#include "anyop/cuda/rows.h"
#include "anyop/ops/embedding.h"

namespace anyop::cuda {
namespace {

constexpr int kThreads = 256;

struct Copies {
  const void* indices;
  const char* weight;
  char* out;
  int64_t rows, V, units, step_bytes;  // units of a row; from row to row of weight
  int lanes;
};

template <typename Unit, typename Index>
__global__ void __launch_bounds__(kThreads) CopyRows(const __grid_constant__ Copies p) {
  constexpr int kBatch = 4;
  const int lane = threadIdx.x % p.lanes, rows_of_block = blockDim.x / p.lanes;
  for (int64_t row = int64_t{blockIdx.x} * rows_of_block + threadIdx.x / p.lanes; row < p.rows;
       row += int64_t{gridDim.x} * rows_of_block) {
    const int64_t index = static_cast<const Index*>(p.indices)[row];
    const bool inside = static_cast<uint64_t>(index) < static_cast<uint64_t>(p.V);
    const auto* from =
        reinterpret_cast<const Unit*>(p.weight + (inside ? index : 0) * p.step_bytes);
    auto* to = reinterpret_cast<Unit*>(p.out) + row * p.units;
    for (int64_t first = lane; first < p.units; first += int64_t{kBatch} * p.lanes) {
      Unit units[kBatch] = {};
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int64_t at = first + i * p.lanes;
        if (inside && at < p.units) units[i] = from[at];
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int64_t at = first + i * p.lanes;
        if (at < p.units) to[at] = units[i];
      }
    }
  }
}

template <typename Unit>
int32_t Run(const EmbeddingArgs& args, AnyopCall* call, Copies p, int64_t row_bytes) {
  p.units = row_bytes / int64_t{sizeof(Unit)};
  const RowThreads threads(p.units, p.units <= 32 ? 1 : 4, kThreads);
  p.lanes = threads.lanes;
  const Launch launch = threads.LaunchFor(p.rows);
  return args.indices->dtype_bits == 32 ? launch.Run(call, CopyRows<Unit, int32_t>, p)
                                        : launch.Run(call, CopyRows<Unit, int64_t>, p);
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_embedding_cuda(const EmbeddingArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  const int64_t element = args->weight->dtype_bits / 8, row_bytes = args->D * element;
  if (args->rows == 0 || row_bytes == 0) return kAnyopOk;
  const Copies p = {args->indices->data,
                    static_cast<const char*>(args->weight->data),
                    static_cast<char*>(args->out->data),
                    args->rows,
                    args->V,
                    0,
                    args->weight->strides[0] * element,
                    0};
  const auto fits = [&](int64_t bytes) {  // rows that begin and end at multiples
    return row_bytes % bytes == 0 && p.step_bytes % bytes == 0 &&
           IsAligned(p.weight, static_cast<uintptr_t>(bytes)) &&
           IsAligned(p.out, static_cast<uintptr_t>(bytes));
  };
  if (fits(16)) return Run<uint4>(*args, call, p, row_bytes);
  if (fits(8)) return Run<uint64_t>(*args, call, p, row_bytes);
  if (fits(4)) return Run<uint32_t>(*args, call, p, row_bytes);
  return fits(2) ? Run<uint16_t>(*args, call, p, row_bytes)
                 : Run<uint8_t>(*args, call, p, row_bytes);
}
