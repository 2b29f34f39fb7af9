// SPDX-License-Identifier: Apache-2.0
// transducer_joint on CUDA, padded or packed. Threads share a row of the lattice, each takes pieces
// of 16 bytes, or single elements; f and g are read again for each row, from the caches.
#include "anyop/ops/transducer_joint.h"
#include "anyop/ops/transducer_joint_packed.h"
#include "joint_pieces_cuda.h"

namespace anyop::cuda {
namespace {

template <typename T>
struct Joint {
  JointRows rows;
  const T *f, *g;
  T* out;
  bool* mask;  // NULL: not wanted
};

template <typename T, int kPer>
__global__ void __launch_bounds__(kJointThreads) JoinRows(const __grid_constant__ Joint<T> p) {
  using W = Wide<T>;
  const Lattice& lattice = p.rows.lattice;
  const W scale = static_cast<W>(p.rows.numbers.scale);
  p.rows.Each(lattice.rows, [&](int64_t row, const auto& each_piece) {
    const Lattice::Node node = lattice.Find(row);
    const int64_t padded = lattice.PaddedRow(node);
    const T* const of_f = p.f + (node.b * lattice.T + node.t) * p.rows.H;
    const T* const of_g = p.g + (node.b * lattice.U + node.u) * p.rows.H;
    each_piece([&](int64_t piece) {
      const int64_t h = piece * kPer;
      Piece<W, kPer> sums = {};
      bool kept[kPer] = {};
      if (node.inside) {
        const auto f = ReadPiece<kPer>(of_f + h, true), g = ReadPiece<kPer>(of_g + h, true);
        FindKept(p.rows.numbers, padded, h, f, g, kept);
#pragma unroll
        for (int k = 0; k < kPer; ++k) sums.at[k] = kept[k] ? (f.at[k] + g.at[k]) * scale : W(0);
      }
      WritePiece<kPer>(p.out + row * p.rows.H + h, true, sums);
      if (!p.mask) return;
#pragma unroll
      for (int k = 0; k < kPer; ++k) p.mask[row * p.rows.H + h + k] = kept[k];
    });
  });
}

template <typename T, typename Args>
int32_t Run(const Args& args, AnyopCall* call, const AnyopTensor* batch_offset) {
  constexpr int kWhole = kPerVector<T>;
  const Lattice lattice = LatticeOf(args.f, args.g, args.f_len, args.g_len, batch_offset, args.out);
  if (lattice.rows == 0 || args.H == 0) return kAnyopOk;
  const auto *f = static_cast<const T*>(args.f->data), *g = static_cast<const T*>(args.g->data);
  auto* out = static_cast<T*>(args.out->data);
  const bool whole =
      args.H % kWhole == 0 && IsAligned(f, 16) && IsAligned(g, 16) && IsAligned(out, 16);
  const JointRows rows(lattice, JointNumbers(args), args.H, whole ? kWhole : 1);
  const Joint<T> p = {rows, f, g, out, args.mask ? static_cast<bool*>(args.mask->data) : nullptr};
  const Launch launch = rows.LaunchFor(lattice.rows);
  return whole ? launch.Run(call, JoinRows<T, kWhole>, p) : launch.Run(call, JoinRows<T, 1>, p);
}

template <typename Args>
int32_t Join(const Args& args, AnyopCall* call, const AnyopTensor* batch_offset) {
  if (const int32_t status = CheckJoint(call, args)) return status;
  return WithFloating(AnyopDtypeOf(args.f),
                      [&](auto zero) { return Run<decltype(zero)>(args, call, batch_offset); });
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_transducer_joint_cuda(const TransducerJointArgs* args, AnyopCall* call) {
  return anyop::cuda::Join(*args, call, nullptr);
}
extern "C" int32_t anyop_transducer_joint_packed_cuda(const TransducerJointPackedArgs* args,
                                                      AnyopCall* call) {
  return anyop::cuda::Join(*args, call, args->batch_offset);
}
