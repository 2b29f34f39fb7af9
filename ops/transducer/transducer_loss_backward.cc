// SPDX-License-Identifier: Apache-2.0
// Gradient of transducer_loss on the CPU, padded or packed: a thread takes rows of logits.
#include "anyop/ops/transducer_loss_backward.h"

#include "../loss/class_sums.h"
#include "anyop/ops/transducer_loss_packed_backward.h"
#include "loss_lattice.h"

namespace anyop::cpu {
namespace {

struct Work {
  const AnyopTensor *x, *blank_moves, *label_moves, *lse, *grad_loss, *grad_x;
  LossLattice lattice;
  bool log_softmax;
};

template <typename Wide>
inline void Gradients(const Work& work, int64_t begin, int64_t end) {
  const Rows x(work.x), grad_x(work.grad_x);
  const LossLattice& lattice = work.lattice;
  const AnyopDtype dtype = x.dtype();
  const int64_t item = work.x->dtype_bits / 8;
  const auto of = [](const AnyopTensor* tensor, int64_t i) {
    return static_cast<const Wide*>(tensor->data)[i];
  };
  for (int64_t row = begin; row < end; ++row) {
    const Lattice::Node node = lattice.Find(row);
    const Wide blank = of(work.blank_moves, row), label = of(work.label_moves, row);
    char* const to = grad_x[row];
    if (!node.inside || (blank == 0 && label == 0)) {
      __builtin_memset(to, 0, lattice.V * item);
      continue;
    }
    const Wide given = of(work.grad_loss, node.b);
    const Wide lse = of(work.lse, row), all = blank + label;
    // Of one class, before anything is written: the gradient may lie where the logits do.
    const auto of_class = [&](int64_t v, Wide moves) {
      if (!work.log_softmax) return -moves * given;
      RowReader<Wide, 1> one(dtype, x[row] + v * item, 1, 0);
      return (ClassGradient<Wide>{lse, all, 0, 0}(one.Read(0, 1)[0]) - moves) * given;
    };
    const int64_t own = lattice.LabelOf(node, lattice[node.b]);
    const Wide of_blank = of_class(lattice.blank, own == lattice.blank ? all : blank);
    const Wide of_label = own >= 0 ? of_class(own, label) : Wide{0};
    if (work.log_softmax) {
      RowReader<Wide> in(dtype, x[row], lattice.V);
      const ClassGradient<Wide> gradient = {lse, all * given, 0, 0};
      gradient.Write(lattice.V, in, -1, dtype, to);
    } else {
      __builtin_memset(to, 0, lattice.V * item);
    }
    const auto put = [&](int64_t v, Wide value) {
      RowWriter<Wide> one(dtype, to + v * item, 0);
      *one.Target(0) = value;
      one.Write(0, 1);
    };
    put(lattice.blank, of_blank);
    if (own >= 0 && own != lattice.blank) put(own, of_label);
  }
}

ANYOP_CPU_CLONES void Run(const Work* work, int64_t begin, int64_t end) {
  WithFloat(AnyopDtypeOf(work->x),
            [&](auto wide) { Gradients<decltype(wide)>(*work, begin, end); });
}

template <typename Args>
int32_t Differentiate(const Args& args, AnyopCall* call, const AnyopTensor* batch_offset) {
  const LossLattice lattice(args, batch_offset);
  if (const int32_t status = lattice.CheckAll(call)) return status;
  const Work work = {args.x,         args.blank_moves, args.label_moves, args.lse,
                     args.grad_loss, args.grad_x,      lattice,          args.log_softmax != 0};
  return RunRows(call, &work, lattice.rows, args.V, Run);
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_transducer_loss_backward_cpu(const TransducerLossBackwardArgs* args,
                                                      AnyopCall* call) {
  return anyop::cpu::Differentiate(*args, call, nullptr);
}
extern "C" int32_t anyop_transducer_loss_packed_backward_cpu(
    const TransducerLossPackedBackwardArgs* args, AnyopCall* call) {
  return anyop::cpu::Differentiate(*args, call, args->batch_offset);
}
