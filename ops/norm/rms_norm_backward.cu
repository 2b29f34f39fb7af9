// SPDX-License-Identifier: Apache-2.0
// rms_norm_backward on CUDA: each row is read once, and its scale is computed again; sums are
// float32 (float64). 3 s bytes are moved an element of size s. Who does what:
// anyop/cuda_row_sums.h.
#include "anyop/cuda_row_sums.h"
#include "anyop/ops/rms_norm_backward.h"

namespace anyop::cuda {
namespace {

template <typename T, bool kAny>
struct Gradients {
  using W = Wide<T>;
  static constexpr int kInputs = 2, kSums = 1;
  RowsAt<kAny> in[kInputs];  // grad_out, x
  RowsAt<kAny> grad_x;
  ColumnsAt<T> weight;
  W eps, inverse_D;

  template <typename Row, typename Sums, typename Release>
  __device__ void operator()(Row& row, Sums& sums, const Release& release) const {
    const auto v = row.ReadAll(in);
    const auto w = row.Columns(weight);
    W squares = row.Fold(W(0), [](W sum, W x) { return MulAdd(x, x, sum); }, v[1]);
    W products =
        row.Fold(W(0), [](W sum, W g, W x, W w) { return MulAdd(g * w, x, sum); }, v[0], v[1], w);
    row.Totals(squares, products);
    release();
    const W scale = ReciprocalRoot(MulAdd(squares, inverse_D, eps));
    const W slope = products * inverse_D * scale;
    const auto gradient = [=](const W(&in)[2], W w) {
      return scale * MulAdd(-in[1] * scale, slope, in[0] * w);
    };
    row.WriteAndAdd(*this, grad_x, sums, row.Note(scale), gradient, v, w);
  }
  __device__ static void AddColumn(W (&sums)[1], const Notes<W>& notes, const W (&in)[2]) {
    sums[0] = MulAdd(in[0], in[1] * notes.at[0], sums[0]);
  }
};

template <typename T>
int32_t Run(const RmsNormBackwardArgs* args, AnyopCall* call) {
  return RunRowsAndSums<T>(call, {args->rows, args->D}, {args->grad_out, args->x}, {args->grad_x},
                           {args->grad_weight}, [&](auto any) {
                             return Gradients<T, any>{
                                 {PlaceRows<any>(args->grad_out), PlaceRows<any>(args->x)},
                                 PlaceRows<any>(args->grad_x),
                                 PlaceColumns<T>(args->weight, 0, 1),
                                 EpsilonOf<T>(args->eps),
                                 1 / static_cast<Wide<T>>(args->D)};
                           });
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_rms_norm_backward_cuda(const RmsNormBackwardArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  if (!args->grad_x && !args->grad_weight) return kAnyopOk;
  const AnyopDtype dtype = AnyopDtypeOf(args->x);
  if (!args->weight || AnyopDtypeOf(args->weight) != dtype ||
      AnyopDtypeOf(args->grad_out) != dtype || args->weight_offset != 0)
    return call->fail(call, kAnyopDeclined, "it takes one dtype, a weight and no weight_offset");
  return WithFloating(dtype, [&](auto zero) { return Run<decltype(zero)>(args, call); });
}
