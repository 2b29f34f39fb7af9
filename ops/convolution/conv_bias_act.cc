// SPDX-License-Identifier: Apache-2.0
// Blocks of the results as a matrix product of windows by weights; scale, bias, mask, residual and
// relu are applied to the sums, which are rounded once.
#include "anyop/ops/conv_bias_act.h"

#include "anyop/cpu_rows.h"
#include "windows.h"

namespace anyop::cpu {
namespace {

struct Block {
  const ConvBiasActArgs& args;
  int64_t first;
  const void* sums;
};

template <typename Wide>
inline void FinishRows(const Block& block, int64_t begin, int64_t end) {
  const ConvBiasActArgs& args = block.args;
  const int64_t K = args.K, item = args.out->dtype_bits / 8;
  const AnyopDtype dtype = AnyopDtypeOf(args.out);
  RowReader<Wide> scale(args.scale, 1, K), bias(args.bias, 0, K);
  const bool relu = args.relu;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t row = block.first + i;
    const Wide* sums = static_cast<const Wide*>(block.sums) + i * K;
    const char* mask = args.mask ? static_cast<const char*>(args.mask->data) + row * K : nullptr;
    RowWriter<Wide> out(dtype, static_cast<char*>(args.out->data) + row * K * item);
    ForBlocks(K, [&](int64_t at, int64_t n) {
      Wide value[kBlock];
      const Wide *factor = scale.Read(at, n), *more = bias.Read(at, n);
      for (int64_t j = 0; j < n; ++j) value[j] = sums[at + j] * factor[j] + more[j];
      for (int64_t j = 0; mask && j < n; ++j) value[j] = mask[at + j] ? value[j] : Wide(0);
      if (args.residual) {
        RowReader<Wide> residual(
            dtype, static_cast<const char*>(args.residual->data) + (row * K + at) * item, n);
        const Wide* added = residual.Read(0, n);
        for (int64_t j = 0; j < n; ++j) value[j] += added[j];
      }
      Wide* to = out.Target(at);
      for (int64_t j = 0; j < n; ++j) to[j] = relu && value[j] < 0 ? Wide(0) : value[j];
      out.Write(at, n);
    });
  }
}

ANYOP_CPU_CLONES void Finish(const Block* block, int64_t begin, int64_t end) {
  WithFloat(AnyopDtypeOf(block->args.out),
            [&](auto wide) { FinishRows<decltype(wide)>(*block, begin, end); });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_conv_bias_act_cpu(const ConvBiasActArgs* args, AnyopCall* call) {
  using namespace anyop;
  const Windows windows = {AnyopDtypeOf(args->x),
                           args->x->data,
                           args->N,
                           args->H,
                           args->W,
                           args->C,
                           args->out->shape[1],
                           args->out->shape[2],
                           args->R,
                           args->S,
                           args->stride,
                           args->padding,
                           args->dilation,
                           false};
  if (args->K == 0) return kAnyopOk;
  return Convolve(call, windows, args->weight->data, args->K,
                  [&](int64_t first, int64_t rows, const void* sums) {
                    const cpu::Block block = {*args, first, sums};
                    cpu::RunRows(call, &block, rows, args->K, cpu::Finish);
                  });
}
