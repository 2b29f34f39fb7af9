// SPDX-License-Identifier: Apache-2.0
// Parts of the results by oneDNN, or blocks of them as a matrix product of windows by weights;
// scale, bias, mask, residual and relu are applied to the sums, which are rounded once.
#include "anyop/ops/conv_bias_act.h"

#include <limits>

#include "anyop/cpu/rows.h"
#include "dnnl_convolution.h"
#include "windows.h"

namespace anyop::cpu {
namespace {

struct Block {
  const ConvBiasActArgs& args;
  int64_t first;
  const void* sums;
};

// What follows the sums of a row, n places of it; `to` may be `sums`.
template <typename Wide>
struct Places {
  const Wide *sums, *factor, *bias, *added;
  const char* mask;
  Wide least;
  Wide* to;

  void Finish(int64_t n) const {
    const Wide *from = sums, *by = factor, *more = bias, *residual = added, low = least;
    const char* seen = mask;
    Wide value[kBlock], *out = to;
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) value[j] = from[j] * by[j] + more[j];
    if (seen) {
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) value[j] = seen[j] ? value[j] : Wide(0);
    }
    if (residual) {
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) value[j] += residual[j];
    }
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) out[j] = value[j] < low ? low : value[j];
  }
};

template <typename Wide>
inline void FinishRows(const Block& block, int64_t begin, int64_t end) {
  const ConvBiasActArgs& args = block.args;
  const int64_t K = args.K, item = args.out->dtype_bits / 8;
  const AnyopDtype dtype = AnyopDtypeOf(args.out);
  RowReader<Wide> scale(args.scale, 1, K), bias(args.bias, 0, K);
  const Wide least = args.relu ? Wide(0) : -std::numeric_limits<Wide>::infinity();
  for (int64_t i = begin; i < end; ++i) {
    const int64_t row = block.first + i;
    const Wide* sums = static_cast<const Wide*>(block.sums) + i * K;
    const char* mask = args.mask ? static_cast<const char*>(args.mask->data) + row * K : nullptr;
    RowWriter<Wide> out(dtype, static_cast<char*>(args.out->data) + row * K * item);
    ForBlocks(K, [&](int64_t at, int64_t n) {
      const char* added = args.residual ? static_cast<const char*>(args.residual->data) : nullptr;
      // Of what is absent nothing is read, and nothing ahead of it.
      RowReader<Wide> residual(dtype, added ? added + (row * K + at) * item : nullptr,
                               added ? n : INT64_MAX, added ? n * item : 0);
      const Places<Wide> places = {sums + at,
                                   scale.Read(at, n),
                                   bias.Read(at, n),
                                   added ? residual.Read(0, n) : nullptr,
                                   mask ? mask + at : nullptr,
                                   least,
                                   out.Target(at)};
      places.Finish(n);
      out.Write(at, n);
    });
  }
}

ANYOP_CPU_CLONES void Finish(const Block* block, int64_t begin, int64_t end) {
  WithFloat(AnyopDtypeOf(block->args.out),
            [&](auto wide) { FinishRows<decltype(wide)>(*block, begin, end); });
}

// Sums of a part in float32, on the thread that made them.
void FinishPart(const void* context, int64_t first, int64_t rows, const float* sums) {
  const Block block = {*static_cast<const ConvBiasActArgs*>(context), first, sums};
  const ConvBiasActArgs& args = block.args;
  const bool wide = AnyopDtypeOf(args.out) == kAnyopFloat32;
  if (wide && !args.scale && !args.bias && !args.mask && !args.residual && !args.relu) return;
  Finish(&block, 0, rows);
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
  if (dnnl::IsWorth(windows, args->K)) {
    const dnnl::Library* library = nullptr;
    if (const int32_t status = dnnl::GetLibrary(call, windows.dtype, &library)) return status;
    if (library && dnnl::Convolve(call, *library, windows, args->K, args->weight->data,
                                  static_cast<float*>(args->out->data), cpu::FinishPart, args))
      return kAnyopOk;
  }
  return Convolve(call, windows, args->weight->data, args->K,
                  [&](int64_t first, int64_t rows, const void* sums) {
                    const cpu::Block block = {*args, first, sums};
                    cpu::RunRows(call, &block, rows, args->K, cpu::Finish);
                  });
}
