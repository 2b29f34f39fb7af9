// SPDX-License-Identifier: Apache-2.0
// silu_and_mul_quant on CUDA: see quantize_cuda.h.
#include "../elementwise/activations_cuda.h"
#include "anyop/ops/silu_and_mul_quant.h"
#include "quantize_cuda.h"

namespace anyop::cuda {
namespace {

template <bool kAny>
struct SiluAndMulQuant {
  [[maybe_unused]] static constexpr int kVectors = 2;
  [[maybe_unused]] static constexpr bool kKeepsValues = true;
  RowsAt<kAny> gate, value;
  QuantizedRows<kAny> out;

  template <typename Row>
  __device__ void operator()(Row& row) const {
    out.Write(row, ValueTimes<SiluForm>(), row.Read(gate), row.Read(value));
  }
};

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_silu_and_mul_quant_cuda(const SiluAndMulQuantArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  const HalfOf gate(args->x, 0), value(args->x, 1);
  const auto to = [&](auto any) {
    return QuantizedRows<any>(args->out, args->scale, args->scales, args->D, args->group);
  };
  return WithFloat32Sums(AnyopDtypeOf(args->x), [&](auto zero) {
    using T = decltype(zero);
    const RowShape shape = {args->rows, args->D};
    const RowsFit fit = FitRows<T>(shape, {&gate.tensor, &value.tensor}, {nullptr});
    return RunQuantized<T, false>(call, shape, fit, to(std::true_type()), [&](auto, auto any) {
      return SiluAndMulQuant<any>{PlaceRows<any>(&gate.tensor), PlaceRows<any>(&value.tensor),
                                  to(any)};
    });
  });
}
