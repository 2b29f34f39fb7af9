// SPDX-License-Identifier: Apache-2.0
// batch_norm_backward and batch_norm_backward_channels_last on the CPU: rows, or parts of some
// pixels.
#include "anyop/ops/batch_norm_backward.h"

#include "anyop/ops/batch_norm_backward_channels_last.h"
#include "channel_pixels.h"

namespace anyop::cpu {
namespace {

struct Work {
  ChannelRuns runs;
  PlainRows grad_out, x, grad_x, grad_residual;
  const uint8_t* mask;
  char* numbers;  // of each channel: mean, and a, b, e of grad_x = a * d - b - e * (x - mean)
};

template <typename E>
inline void GradientOfPiece(const Work& work, int64_t piece) {
  using Wide = typename WideOf<E>::Type;
  const Wide *means = reinterpret_cast<const Wide*>(work.numbers), *a = means + work.runs.C,
             *b = a + work.runs.C, *e = b + work.runs.C;
  RunReader<E> grad(work.grad_out, work.mask), in(work.x);
  RunWriter<E> to(work.grad_x), residual(work.grad_residual);
  ForPlaces<E>(work.runs, piece, [&](const Place& place, auto pixels, auto channel) {
    const Run<const E> d = grad.Read(place);
    if (work.grad_residual.data) {
      const auto same = [](int64_t) { return [](const auto& d) { return d; }; };
      MapChannels(place, pixels, channel, same, residual, d);
    }
    if (!work.grad_x.data) return;
    const auto gradient = [=](int64_t c) {
      return [m = means[c], of_d = a[c], less = b[c], of_x = e[c]](const auto& d, const auto& v) {
        return of_d * d - less - of_x * (v - m);
      };
    };
    MapChannels(place, pixels, channel, gradient, to, d, in.Read(place));
  });
}

ANYOP_CPU_CLONES void Pieces(const Work* work, int64_t begin, int64_t end) {
  ForUnitsInPlace(
      work->x.dtype, !work->runs.last(), work->mask, begin, end,
      [&](auto element, int64_t piece) { GradientOfPiece<decltype(element)>(*work, piece); });
}

inline double Total(const AnyopTensor* count) {
  double total = 0;
  for (int64_t p = 0; count && p < count->shape[0]; ++p) total += CountOf(count, p);
  return total;
}

template <typename Wide, typename Args>
void PutNumbers(const Args& args, Wide* to) {
  ReadNumbers(PlainRows(args.weight), 0, args.C, Wide{1}, to + args.C);
  const double total = Total(args.count), share = total > 0 ? 1 / total : 0;
  const auto of = [](const AnyopTensor* t, int64_t c) {
    return t ? static_cast<double>(static_cast<const Wide*>(t->data)[c]) : 0;
  };
  for (int64_t c = 0; c < args.C; ++c) {
    const double rstd = of(args.rstd, c), a = rstd * to[args.C + c];
    to[c] = static_cast<Wide>(of(args.mean, c));
    to[args.C + c] = static_cast<Wide>(a);
    to[2 * args.C + c] = static_cast<Wide>(a * share * of(args.sum_dy, c));
    to[3 * args.C + c] = static_cast<Wide>(a * share * rstd * rstd * of(args.sum_dy_xmu, c));
  }
}

template <typename Args>
int32_t RunBackward(const Args& args, AnyopCall* call, bool last) {
  Work work = {{args.N, args.C, args.numel_S, last},
               PlainRows(args.grad_out),
               PlainRows(args.x),
               PlainRows(args.grad_x),
               PlainRows(args.grad_residual),
               MaskOf(args.mask),
               nullptr};
  if (work.runs.count == 0) return kAnyopOk;
  const int64_t bytes = 4 * args.C * (work.x.dtype == kAnyopFloat64 ? 8 : 4);
  work.numbers = static_cast<char*>(call->workspace(call, bytes));
  if (!work.numbers) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  WithFloat(work.x.dtype,
            [&](auto wide) { PutNumbers(args, reinterpret_cast<decltype(wide)*>(work.numbers)); });
  return RunRows(call, &work, work.runs.pieces(), work.runs.of_piece(), Pieces);
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_batch_norm_backward_cpu(const BatchNormBackwardArgs* args,
                                                 AnyopCall* call) {
  return anyop::cpu::RunBackward(*args, call, false);
}
extern "C" int32_t anyop_batch_norm_backward_channels_last_cpu(
    const BatchNormBackwardChannelsLastArgs* args, AnyopCall* call) {
  return anyop::cpu::RunBackward(*args, call, true);
}
