// SPDX-License-Identifier: Apache-2.0
// Gradient of transducer_loss on CUDA, padded or packed. Threads share a row of logits, each takes
// pieces of 16 bytes, or single elements: it reads and writes them in place.
#include "anyop/cuda/rows.h"
#include "anyop/ops/transducer_loss_backward.h"
#include "anyop/ops/transducer_loss_packed_backward.h"
#include "loss_lattice.h"

namespace anyop::cuda {
namespace {

constexpr int kGradientThreads = 256;

template <typename T>
struct LossGradient {
  using W = Wide<T>;
  LossLattice lattice;
  const T* x;
  T* grad_x;
  const W *blank_moves, *label_moves, *lse, *grad_loss;
  bool log_softmax;
  int lanes;  // threads of a row: a power of two up to those of the block
};

template <typename T, int kPer>
__global__ void __launch_bounds__(kGradientThreads)
    WriteGradients(const __grid_constant__ LossGradient<T> p) {
  using W = Wide<T>;
  const LossLattice& lattice = p.lattice;
  const int64_t rows_of_block = DivideByLanes(kGradientThreads, p.lanes);
  for (int64_t row = blockIdx.x * rows_of_block + DivideByLanes(threadIdx.x, p.lanes);
       row < lattice.rows; row += gridDim.x * rows_of_block) {
    const Lattice::Node node = lattice.Find(row);
    W blank = 0, label = 0, lse = 0, given = 0;
    int64_t own = -1;
    bool moves = false;
    if (node.inside) {
      blank = p.blank_moves[row], label = p.label_moves[row], lse = p.lse[row];
      moves = !(blank == 0 && label == 0);
      given = p.grad_loss[node.b];
      own = lattice.LabelOf(node, lattice[node.b]);
    }
    for (int64_t v = (threadIdx.x & (p.lanes - 1)) * kPer; v < lattice.V; v += p.lanes * kPer) {
      Piece<W, kPer> piece = {};
      if (moves && p.log_softmax) piece = ReadPiece<kPer>(p.x + row * lattice.V + v, true);
#pragma unroll
      for (int k = 0; k < kPer; ++k) {
        W slope = 0;
        if (moves) {
          if (p.log_softmax) slope = Exponential(piece.at[k] - lse) * (blank + label);
          if (v + k == lattice.blank) slope -= blank;
          if (v + k == own) slope -= label;
        }
        piece.at[k] = moves ? slope * given : W(0);
      }
      WritePiece<kPer>(p.grad_x + row * lattice.V + v, true, piece);
    }
  }
}

template <typename T, typename Args>
int32_t Run(const Args& args, AnyopCall* call, const AnyopTensor* batch_offset) {
  using W = Wide<T>;
  constexpr int kWhole = kPerVector<T>;
  const LossLattice lattice(args, batch_offset);
  if (lattice.rows == 0) return kAnyopOk;
  const auto at = [](const AnyopTensor* tensor) { return static_cast<const W*>(tensor->data); };
  LossGradient<T> p = {lattice,
                       static_cast<const T*>(args.x->data),
                       static_cast<T*>(args.grad_x->data),
                       at(args.blank_moves),
                       at(args.label_moves),
                       at(args.lse),
                       at(args.grad_loss),
                       args.log_softmax != 0,
                       1};
  const bool whole = args.V % kWhole == 0 && IsAligned(p.x, 16) && IsAligned(p.grad_x, 16);
  while (p.lanes < kGradientThreads && p.lanes * (whole ? kWhole : 1) < args.V) p.lanes *= 2;
  const int64_t blocks = CeilDiv(lattice.rows, kGradientThreads / p.lanes);
  const Launch launch{dim3(static_cast<unsigned>(blocks < 0x7fffffff ? blocks : 0x7fffffff)),
                      dim3(kGradientThreads)};
  return whole ? launch.Run(call, WriteGradients<T, kWhole>, p)
               : launch.Run(call, WriteGradients<T, 1>, p);
}

template <typename Args>
int32_t Differentiate(const Args& args, AnyopCall* call, const AnyopTensor* batch_offset) {
  return WithFloating(AnyopDtypeOf(args.x),
                      [&](auto zero) { return Run<decltype(zero)>(args, call, batch_offset); });
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_transducer_loss_backward_cuda(const TransducerLossBackwardArgs* args,
                                                       AnyopCall* call) {
  return anyop::cuda::Differentiate(*args, call, nullptr);
}
extern "C" int32_t anyop_transducer_loss_packed_backward_cuda(
    const TransducerLossPackedBackwardArgs* args, AnyopCall* call) {
  return anyop::cuda::Differentiate(*args, call, args->batch_offset);
}
