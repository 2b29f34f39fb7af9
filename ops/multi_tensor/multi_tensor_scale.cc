// SPDX-License-Identifier: Apache-2.0
// multi_tensor_scale on the CPU: one read and one write an element.
#include "anyop/ops/multi_tensor_scale.h"

#include "anyop/cpu/lists.h"

namespace anyop::cpu {
namespace {

// 16 bits to 16 bits of the same type, converted in registers. Whether all that was read is finite:
// an exponent of which all bits are set is not.
template <typename T>
inline bool ScaleHalves(const T* from, T* to, float scale, int64_t n) {
  constexpr uint16_t kExponent = kDtype<T> == kAnyopFloat16 ? 0x7c00 : 0x7f80;
  const auto* bits = reinterpret_cast<const uint16_t*>(from);
  uint16_t found = 0;
  for (int64_t size, at = 0; at < n; at += size) {
    size = n - at < kBlock ? n - at : kBlock;
    for (int64_t i = at + size; i < at + 2 * size; i += 32) __builtin_prefetch(from + i);
#pragma omp simd reduction(| : found)
    for (int64_t i = at; i < at + size; ++i) found |= (bits[i] & kExponent) == kExponent;
    Apply(size, [scale](const auto& x) { return x * scale; }, to + at, from + at);
  }
  return !found;
}
ANYOP_CPU_CLONES bool RunHalves(const AnyopTensor& from, const AnyopTensor& to, double factor,
                                int64_t begin, int64_t n) {
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    return ScaleHalves(static_cast<const T*>(from.data) + begin, static_cast<T*>(to.data) + begin,
                       static_cast<float>(factor), n);
  };
  return AnyopDtypeOf(&from) == kAnyopFloat16 ? run(float16()) : run(bfloat16());
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
    const AnyopDtype dtype = AnyopDtypeOf(&x);
    const bool halves = wide == kAnyopFloat32 && dtype == AnyopDtypeOf(&out) &&
                        (dtype == kAnyopFloat16 || dtype == kAnyopBFloat16);
    found.Note(!(halves ? RunHalves(x, out, scale, begin, n) : Run(x, out, wide, scale, begin, n)));
  });
  if (found.any()) SetFound(args->found_inf);
  return kAnyopOk;
}
