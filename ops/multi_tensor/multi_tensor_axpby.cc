// SPDX-License-Identifier: Apache-2.0
// multi_tensor_axpby on the CPU: two reads and one write an element.
#include "anyop/ops/multi_tensor_axpby.h"

#include "anyop/cpu/lists.h"

namespace anyop::cpu {
namespace {

struct Sum {
  double a, b;
  AnyopDtype wide;
  bool checks_x, checks_y;
};

// Whether all that is checked is finite.
ANYOP_CPU_CLONES bool Run(const Sum& sum, const AnyopTensor& first, const AnyopTensor& second,
                          const AnyopTensor& to, int64_t begin, int64_t count) {
  bool finite = true;
  WithFloat(sum.wide, [&](auto zero) {
    using Wide = decltype(zero);
    const auto a = static_cast<Wide>(sum.a), b = static_cast<Wide>(sum.b);
    for (int64_t done = 0; done < count; done += kBlock) {
      const int64_t n = count - done < kBlock ? count - done : kBlock;
      Elements<Wide> in_x(first, begin + done, n), in_y(second, begin + done, n);
      Elements<Wide> out(to, begin + done, n);
      const Wide *x = in_x.Read(), *y = in_y.Read();
      if (sum.checks_x) finite &= AreFinite(x, n);
      if (sum.checks_y) finite &= AreFinite(y, n);
      Wide* z = out.data();
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) z[i] = a * x[i] + b * y[i];
      out.Write();
    }
  });
  return finite;
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_multi_tensor_axpby_cpu(const MultiTensorAxpbyArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  const ListChunks chunks(call, args->x);
  if (int32_t status = chunks.status()) return status;
  const bool is_wide = AnyFloat64(args->x, args->y, args->out);
  const Sum sum = {ValueOf(args->a, 1), ValueOf(args->b, 1),
                   is_wide ? kAnyopFloat64 : kAnyopFloat32, args->check != 1, args->check != 0};
  Found found;
  chunks.ForEach(call, [&](int64_t, int64_t k, int64_t begin, int64_t n) {
    found.Note(!Run(sum, args->x.data[k], args->y.data[k], args->out.data[k], begin, n));
  });
  if (found.any()) SetFound(args->found_inf);
  return kAnyopOk;
}
