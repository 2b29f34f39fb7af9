// SPDX-License-Identifier: Apache-2.0
// quant_fp8 on the CPU: a row is read from memory once; see quantize_row.h.
#include "anyop/ops/quant_fp8.h"

#include "quantize_row.h"

namespace anyop::cpu {
namespace {

ANYOP_CPU_CLONES void Run(const QuantFp8Args* args, int64_t begin, int64_t end) {
  const Rows x(args->x);
  const QuantizedRows out(args->out, args->scale, args->scales, args->D, args->group);
  for (int64_t row = begin; row < end; ++row) {
    RowReader<float> in(x.dtype(), x[row], args->D);
    out.Write(row, [](float v) { return v; }, in);
  }
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_quant_fp8_cpu(const QuantFp8Args* args, AnyopCall* call) {
  return anyop::cpu::RunRows(call, args, args->rows, args->D, anyop::cpu::Run);
}
