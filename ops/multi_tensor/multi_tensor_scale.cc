// SPDX-License-Identifier: Apache-2.0
// multi_tensor_scale on the CPU: one read and one write an element.
#include "anyop/ops/multi_tensor_scale.h"

#include "anyop/cpu_lists.h"

namespace anyop::cpu {
namespace {

// Whether all that was read is finite.
ANYOP_CPU_CLONES bool Run(const AnyopTensor& from, const AnyopTensor& to, AnyopDtype wide,
                          double factor, int64_t begin, int64_t count) {
  bool finite = true;
  WithFloat(wide, [&](auto zero) {
    using Wide = decltype(zero);
    const auto scale = static_cast<Wide>(factor);
    for (int64_t done = 0; done < count; done += kBlock) {
      const int64_t n = count - done < kBlock ? count - done : kBlock;
      Elements<Wide> in(from, begin + done, n), out(to, begin + done, n);
      const Wide* x = in.Read();
      Wide *y = out.data(), zero = 0;  // of what is not finite, NaN
#pragma omp simd reduction(+ : zero)
      for (int64_t i = 0; i < n; ++i) zero += x[i] * 0, y[i] = x[i] * scale;
      finite &= zero == 0;
      out.Write();
    }
  });
  return finite;
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_multi_tensor_scale_cpu(const MultiTensorScaleArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  const ListChunks chunks(call, args->x);
  if (int32_t status = chunks.status()) return status;
  const AnyopDtype wide = AnyFloat64(args->x, args->out) ? kAnyopFloat64 : kAnyopFloat32;
  const double scale = ValueOf(args->scale, 1);
  Found found;
  chunks.ForEach(call, [&](int64_t, int64_t k, int64_t begin, int64_t n) {
    found.Note(!Run(args->x.data[k], args->out.data[k], wide, scale, begin, n));
  });
  if (found.any()) SetFound(args->found_inf);
  return kAnyopOk;
}
