// SPDX-License-Identifier: Apache-2.0
// quant_fp8 on CUDA: see quantize_cuda.h.
#include "anyop/ops/quant_fp8.h"
#include "quantize_cuda.h"

namespace anyop::cuda {
namespace {

template <bool kAny>
struct QuantFp8 {
  RowsAt<kAny> x;
  QuantizedRows<kAny> out;

  template <typename Row>
  __device__ void operator()(Row& row) const {
    out.Write(row, Itself(), row.Read(x));
  }
};

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_quant_fp8_cuda(const QuantFp8Args* args, AnyopCall* call) {
  using namespace anyop::cuda;
  const auto to = [&](auto any) {
    return QuantizedRows<any>(args->out, args->scale, args->scales, args->D, args->group);
  };
  return WithFloat32Sums(AnyopDtypeOf(args->x), [&](auto zero) {
    using T = decltype(zero);
    const RowShape shape = {args->rows, args->D};
    const RowsFit fit = FitRows<T>(shape, {args->x}, {nullptr});
    return RunQuantized<T, false>(call, shape, fit, to(std::true_type()), [&](auto, auto any) {
      return QuantFp8<any>{PlaceRows<any>(args->x), to(any)};
    });
  });
}
