// SPDX-License-Identifier: Apache-2.0
// Gradient of transducer_joint on the CPU, padded or packed: a thread takes frames, then tokens,
// and adds their rows in float64, one behind the other: the same bits for any number of threads.
#include "anyop/ops/transducer_joint_backward.h"

#include <initializer_list>

#include "anyop/cpu/rows.h"
#include "anyop/ops/transducer_joint_packed_backward.h"
#include "joint_rows.h"

namespace anyop::cpu {
namespace {

struct Work {
  const AnyopTensor *grad_out, *f, *g, *out;
  Lattice lattice;
  JointNumbers numbers;
  int64_t H;
  bool of_frames;  // out is grad_f, else grad_g
};

template <typename Wide>
inline void AddRows(const Work& work, int64_t begin, int64_t end) {
  const JointNumbers& numbers = work.numbers;
  const Lattice& lattice = work.lattice;
  const Rows f(work.f), g(work.g), grad_out(work.grad_out), out(work.out);
  const int64_t item = work.out->dtype_bits / 8;
  double sums[kBlock];
  uint32_t words[kBlock] = {};
  for (int64_t row = begin; row < end; ++row) {
    const int64_t all = work.of_frames ? lattice.T : lattice.U, b = row / all, own = row % all;
    const Lattice::Sequence s = lattice[b];
    const bool inside = own < (work.of_frames ? s.frames : s.tokens);
    const int64_t count = !inside ? 0 : work.of_frames ? s.tokens : s.frames;
    ForBlocks(work.H, [&](int64_t at, int64_t size) {
      for (int64_t i = 0; i < size; ++i) sums[i] = 0;
      for (int64_t other = 0; other < count; ++other) {
        const Lattice::Node node = {b, work.of_frames ? own : other, work.of_frames ? other : own,
                                    true};
        const auto part = [&](const Rows& rows, int64_t index) {
          return RowReader<Wide, kBlock>(rows.dtype(), rows[index] + at * item, size, 0);
        };
        auto given = part(grad_out, s.first + node.t * s.stride + node.u);
        const Wide* d = given.Read(0, size);
        if (numbers.KeepsAll()) {
          for (int64_t i = 0; i < size; ++i) sums[i] += d[i];
          continue;
        }
        if (numbers.seed) DrawWords(numbers, lattice.PaddedRow(node), at, size, words);
        auto of_f = part(f, b * lattice.T + node.t), of_g = part(g, b * lattice.U + node.u);
        const Wide *x = of_f.Read(0, size), *y = of_g.Read(0, size);
        for (int64_t i = 0; i < size; ++i)
          sums[i] += numbers.Keeps(x[i] + y[i], words[i]) ? d[i] : Wide{0};
      }
      RowWriter<Wide> to(out.dtype(), out[row]);
      Wide* z = to.Target(at);
      for (int64_t i = 0; i < size; ++i) z[i] = static_cast<Wide>(sums[i] * numbers.scale);
      to.Write(at, size);
    });
  }
}

ANYOP_CPU_CLONES void Run(const Work* work, int64_t begin, int64_t end) {
  WithFloat(AnyopDtypeOf(work->f), [&](auto wide) { AddRows<decltype(wide)>(*work, begin, end); });
}

template <typename Args>
int32_t Join(const Args& args, AnyopCall* call, const AnyopTensor* batch_offset) {
  if (const int32_t status = CheckJoint(call, args)) return status;
  const Lattice lattice =
      LatticeOf(args.f, args.g, args.f_len, args.g_len, batch_offset, args.grad_out);
  if (const int32_t status = lattice.Check(call, "g_len")) return status;
  for (const bool of_frames : {true, false}) {
    const AnyopTensor* out = of_frames ? args.grad_f : args.grad_g;
    if (!out) continue;
    const Work work = {args.grad_out,      args.f, args.g,   out, lattice,
                       JointNumbers(args), args.H, of_frames};
    const int64_t rows = lattice.B * (of_frames ? lattice.T : lattice.U);
    RunRows(call, &work, rows, args.H * (of_frames ? lattice.U : lattice.T), Run);
  }
  return kAnyopOk;
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_transducer_joint_backward_cpu(const TransducerJointBackwardArgs* args,
                                                       AnyopCall* call) {
  return anyop::cpu::Join(*args, call, nullptr);
}
extern "C" int32_t anyop_transducer_joint_packed_backward_cpu(
    const TransducerJointPackedBackwardArgs* args, AnyopCall* call) {
  return anyop::cpu::Join(*args, call, args->batch_offset);
}
