// SPDX-License-Identifier: Apache-2.0
// transducer_joint on the CPU, padded or packed: a thread takes rows of the lattice.
#include "anyop/ops/transducer_joint.h"

#include "anyop/cpu/rows.h"
#include "anyop/ops/transducer_joint_packed.h"
#include "joint_rows.h"

namespace anyop::cpu {
namespace {

struct Work {
  const AnyopTensor *f, *g, *out, *mask;
  Lattice lattice;
  JointNumbers numbers;
  int64_t H;
};

template <typename Wide>
inline void JoinRows(const Work& work, int64_t begin, int64_t end) {
  const JointNumbers& numbers = work.numbers;
  const Wide scale = static_cast<Wide>(numbers.scale);
  const Rows f(work.f), g(work.g), out(work.out);
  const int64_t H = work.H;
  uint32_t words[kBlock] = {};
  for (int64_t row = begin; row < end; ++row) {
    const Lattice::Node node = work.lattice.Find(row);
    uint8_t* mask = work.mask ? static_cast<uint8_t*>(work.mask->data) + row * H : nullptr;
    if (!node.inside) {
      __builtin_memset(out[row], 0, H * (work.out->dtype_bits / 8));
      if (mask) __builtin_memset(mask, 0, H);
      continue;
    }
    RowReader<Wide> a(f.dtype(), f[node.b * work.lattice.T + node.t], H);
    RowReader<Wide> b(g.dtype(), g[node.b * work.lattice.U + node.u], H);
    RowWriter<Wide> to(out.dtype(), out[row]);
    const int64_t padded = work.lattice.PaddedRow(node);
    ForBlocks(H, [&](int64_t at, int64_t size) {
      const Wide *x = a.Read(at, size), *y = b.Read(at, size);
      Wide* z = to.Target(at);
      if (numbers.seed) DrawWords(numbers, padded, at, size, words);
      for (int64_t i = 0; i < size; ++i) {
        const Wide sum = x[i] + y[i];
        const bool kept = numbers.Keeps(sum, words[i]);
        z[i] = kept ? sum * scale : Wide{0};
        if (mask) mask[at + i] = kept;
      }
      to.Write(at, size);
    });
  }
}

ANYOP_CPU_CLONES void Run(const Work* work, int64_t begin, int64_t end) {
  WithFloat(AnyopDtypeOf(work->f), [&](auto wide) { JoinRows<decltype(wide)>(*work, begin, end); });
}

template <typename Args>
int32_t Join(const Args& args, AnyopCall* call, const AnyopTensor* batch_offset) {
  if (const int32_t status = CheckJoint(call, args)) return status;
  const Lattice lattice = LatticeOf(args.f, args.g, args.f_len, args.g_len, batch_offset, args.out);
  if (const int32_t status = lattice.Check(call, "g_len")) return status;
  const Work work = {args.f, args.g, args.out, args.mask, lattice, JointNumbers(args), args.H};
  return RunRows(call, &work, lattice.rows, args.H, Run);
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_transducer_joint_cpu(const TransducerJointArgs* args, AnyopCall* call) {
  return anyop::cpu::Join(*args, call, nullptr);
}
extern "C" int32_t anyop_transducer_joint_packed_cpu(const TransducerJointPackedArgs* args,
                                                     AnyopCall* call) {
  return anyop::cpu::Join(*args, call, args->batch_offset);
}
