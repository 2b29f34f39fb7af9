// SPDX-License-Identifier: Apache-2.0
// multi_tensor_scale on the CPU: one read and one write an element.
#include "anyop/ops/multi_tensor_scale.h"

#include "anyop/cpu/lists.h"

namespace anyop::cpu {
namespace {

// bfloat16 to bfloat16, converted in registers. Whether all that was read is finite: an exponent of
// which all bits are set is not.
ANYOP_CPU_CLONES bool RunHalves(const bfloat16* from, bfloat16* to, float scale, int64_t n) {
  const auto* bits = reinterpret_cast<const uint16_t*>(from);
  uint16_t found = 0;
#pragma omp simd reduction(| : found)
  for (int64_t i = 0; i < n; ++i) found |= (bits[i] & 0x7f80) == 0x7f80;
  Apply(n, [scale](const auto& x) { return x * scale; }, to, from);
  return !found;
}

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
    const AnyopTensor &x = args->x.data[k], &out = args->out.data[k];
    const bool halves = wide == kAnyopFloat32 && AnyopDtypeOf(&x) == kAnyopBFloat16 &&
                        AnyopDtypeOf(&out) == kAnyopBFloat16;
    found.Note(
        !(halves ? RunHalves(static_cast<const bfloat16*>(x.data) + begin,
                             static_cast<bfloat16*>(out.data) + begin, static_cast<float>(scale), n)
                 : Run(x, out, wide, scale, begin, n)));
  });
  if (found.any()) SetFound(args->found_inf);
  return kAnyopOk;
}
