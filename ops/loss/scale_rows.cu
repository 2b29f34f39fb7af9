// SPDX-License-Identifier: Apache-2.0
// scale_rows on CUDA. Who does what: anyop/cuda/row.h.
#include "anyop/cuda/row.h"
#include "anyop/ops/scale_rows.h"

namespace anyop::cuda {
namespace {

template <typename T, bool kAny>
struct ScaleRows {
  using W = Wide<T>;
  RowsAt<kAny> x, out;
  RowsAt<true> factor;
  int64_t rows;
  bool in_place;

  template <typename Row>
  __device__ void operator()(Row& row) const {
    const W by = row.index() < rows ? *reinterpret_cast<const W*>(factor.At(row.index())) : W(1);
    if (in_place && by == 1) row.Keep(0);
    row.Write(out, [=](W v) { return v * by; }, row.Read(x));
  }
};

// A tensor (*) as (*, 1).
struct OneColumn {
  AnyopTensor tensor;
  int64_t shape[64], strides[64];

  explicit OneColumn(const AnyopTensor* of) : tensor(*of) {
    for (int d = 0; d < of->ndim; ++d) shape[d] = of->shape[d], strides[d] = of->strides[d];
    shape[of->ndim] = strides[of->ndim] = 1;
    tensor.shape = shape;
    tensor.strides = strides;
    ++tensor.ndim;
  }
  OneColumn(const OneColumn&) = delete;
};

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_scale_rows_cuda(const ScaleRowsArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  const OneColumn factor(args->factor);
  const bool in_place = args->x->data == args->out->data;
  return WithFloating(AnyopDtypeOf(args->x), [&](auto zero) {
    using T = decltype(zero);
    return RunRows<T>(call, {args->rows, args->V}, {args->x}, {args->out}, [&](auto of, auto any) {
      return ScaleRows<decltype(of), any>{PlaceRows<any>(args->x), PlaceRows<any>(args->out),
                                          PlaceRows<true>(&factor.tensor), args->rows, in_place};
    });
  });
}
