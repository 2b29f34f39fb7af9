// SPDX-License-Identifier: Apache-2.0
// Gradient of masked_mean on the CPU: one row of grad_out is divided once for a sequence and copied
// to its tokens that count; the others get zeros.
#include "anyop/ops/masked_mean_backward.h"

#include "anyop/cpu/rows.h"
#include "mask.h"

namespace anyop::cpu {
namespace {

template <typename Wide>
inline void Spread(const MaskedMeanBackwardArgs* args, int64_t sequence) {
  const AnyopDtype dtype = AnyopDtypeOf(args->grad_out);
  const int64_t D = args->D, T = args->T, bytes = args->grad_out->dtype_bits / 8;
  int64_t count = 0;
  for (int64_t t = 0; t < T; ++t) count += IsSet(args->mask, sequence * T + t);
  const Wide scale = static_cast<Wide>(1.0 / static_cast<double>(count));
  const char* from = static_cast<const char*>(args->grad_out->data) + sequence * D * bytes;
  char* to = static_cast<char*>(args->grad_x->data) + sequence * T * D * bytes;
  const char* first = nullptr;  // the token that is copied
  for (int64_t t = 0; t < T; ++t, to += D * bytes) {
    if (!IsSet(args->mask, sequence * T + t)) {
      __builtin_memset(to, 0, D * bytes);
    } else if (first) {
      __builtin_memcpy(to, first, D * bytes);
    } else {
      RowReader<Wide> grad(dtype, from, D);
      RowWriter<Wide> out(dtype, to);
      MapRow(D, [scale](Wide g) { return g * scale; }, out, grad);
      first = to;
    }
  }
}

ANYOP_CPU_CLONES void Run(const MaskedMeanBackwardArgs* args, int64_t begin, int64_t end) {
  WithFloat(AnyopDtypeOf(args->grad_out), [&](auto wide) {
    for (int64_t sequence = begin; sequence < end; ++sequence)
      Spread<decltype(wide)>(args, sequence);
  });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_masked_mean_backward_cpu(const MaskedMeanBackwardArgs* args,
                                                  AnyopCall* call) {
  if (args->D == 0) return kAnyopOk;
  return anyop::cpu::RunRows(call, args, args->B, args->T * args->D, anyop::cpu::Run);
}
