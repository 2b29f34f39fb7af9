// SPDX-License-Identifier: Apache-2.0
// rotary and its gradient on the CPU: each row, one token of one head, is turned in float32
// (float64 for float64).
#include "port/ops/rotary.h"

#include "anyop/cpu/rows.h"
#include "port/ops/rotary_backward.h"

namespace anyop::cpu {
namespace {

struct Turn {
  const AnyopTensor *x, *cos, *sin, *out;
  int64_t T, D;
  int direction;
};

template <typename Wide>
inline void TurnRows(const Turn& turn, int64_t begin, int64_t end) {
  const Rows x(turn.x), cos(turn.cos), sin(turn.sin), out(turn.out);
  const int64_t D = turn.D, half_bytes = D * (turn.x->dtype_bits / 8);
  const Wide direction = static_cast<Wide>(turn.direction);
  for (int64_t row = begin; row < end; ++row) {
    RowReader<Wide> a(x.dtype(), x[row], D), b(x.dtype(), x[row] + half_bytes, D);
    RowReader<Wide> c(x.dtype(), cos[row % turn.T], D), s(x.dtype(), sin[row % turn.T], D);
    RowWriter<Wide> first(x.dtype(), out[row]), second(x.dtype(), out[row] + half_bytes);
    const auto turned = [direction](Wide a, Wide b, Wide c, Wide s) {
      return a * c - direction * b * s;
    };
    const auto other = [direction](Wide a, Wide b, Wide c, Wide s) {
      return b * c + direction * a * s;
    };
    MapRow(D, turned, first, a, b, c, s);
    MapRow(D, other, second, a, b, c, s);
  }
}

ANYOP_CPU_CLONES void Run(const Turn* turn, int64_t begin, int64_t end) {
  WithFloat(AnyopDtypeOf(turn->x), [&](auto wide) { TurnRows<decltype(wide)>(*turn, begin, end); });
}

}  // namespace
}  // namespace anyop::cpu

using anyop::cpu::Run;
using anyop::cpu::RunRows;
using anyop::cpu::Turn;

extern "C" int32_t port_rotary_cpu(const RotaryArgs* args, AnyopCall* call) {
  const Turn turn = {args->x, args->cos, args->sin, args->out, args->T, args->D, 1};
  return RunRows(call, &turn, args->rows * args->T, 2 * args->D, Run);
}

extern "C" int32_t port_rotary_backward_cpu(const RotaryBackwardArgs* args, AnyopCall* call) {
  const Turn turn = {args->grad_out, args->cos, args->sin, args->grad_x, args->T, args->D, -1};
  return RunRows(call, &turn, args->rows * args->T, 2 * args->D, Run);
}
