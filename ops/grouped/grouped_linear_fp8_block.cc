// SPDX-License-Identifier: Apache-2.0
// grouped_linear_fp8_block and its masked twin on the CPU: for each expert both operands times
// their scales, in float32, block by block.
#include "anyop/ops/grouped_linear_fp8_block.h"

#include "../linear/filled_product.h"
#include "../linear/scaled_blocks.h"
#include "../linear/scaled_sums.h"
#include "anyop/ops/grouped_linear_fp8_block_masked.h"
#include "segments.h"

namespace anyop {
namespace {

using cpu::ScaledRows;

// Rows [begin, end) of x, of which row `begin` has its scales at `scales`, by the weight of one
// expert.
template <typename Args>
int32_t RunExpert(const Args* args, AnyopCall* call, FilledProduct& product, int64_t e,
                  int64_t begin, int64_t end, const float* scales, int64_t row_step,
                  int64_t block_step) {
  const int64_t N = args->N, K = args->K, down = args->weight_scale->shape[1],
                across = args->weight_scale->shape[2];
  const ScaledRows x = {
      AnyopDtypeOf(args->x), K, 1, ElementOf(args->x, begin * K), scales, row_step, block_step};
  const ScaledRows weight = {
      AnyopDtypeOf(args->weight),
      K,
      cpu::kScaleBlock,
      ElementOf(args->weight, e * N * K),
      static_cast<const float*>(args->weight_scale->data) + e * down * across,
      across,
      1};
  cpu::ScaledSums sums = {args->out, nullptr, nullptr, nullptr, N};
  sums.first_row = begin;
  return product.Run(end - begin, x, weight, cpu::StoreScaled(call, sums));
}

int32_t NoMemory(AnyopCall* call) {
  return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
}

}  // namespace
}  // namespace anyop

extern "C" int32_t anyop_grouped_linear_fp8_block_cpu(const GroupedLinearFp8BlockArgs* args,
                                                      AnyopCall* call) {
  using namespace anyop;
  FilledProduct product(call, kAnyopFloat32, args->T, args->N, args->K);
  if (!product.has_memory()) return NoMemory(call);
  const AnyopTensor& scale = *args->x_scale;
  const auto run = [&](int64_t e, int64_t begin, int64_t end) {
    return RunExpert(args, call, product, e, begin, end,
                     static_cast<const float*>(scale.data) + begin * scale.strides[0],
                     scale.strides[0], scale.strides[1]);
  };
  return ForSegments(args->offsets, args->E, args->T, run, Rest(call, args->out, args->N));
}

extern "C" int32_t anyop_grouped_linear_fp8_block_masked_cpu(
    const GroupedLinearFp8BlockMaskedArgs* args, AnyopCall* call) {
  using namespace anyop;
  FilledProduct product(call, kAnyopFloat32, args->C, args->N, args->K);
  if (!product.has_memory()) return NoMemory(call);
  const AnyopTensor& scale = *args->x_scale;
  const auto run = [&](int64_t e, int64_t begin, int64_t end) {
    return RunExpert(args, call, product, e, begin, end,
                     static_cast<const float*>(scale.data) + e * scale.strides[0], scale.strides[1],
                     scale.strides[2]);
  };
  return ForCounts(args->counts, args->E, args->C, run, Rest(call, args->out, args->N));
}
