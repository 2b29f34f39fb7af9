// SPDX-License-Identifier: Apache-2.0
// Gradient of transducer_joint on CUDA, padded or packed. A thread has 16 bytes, or one element, of
// a frame's gradient and adds its tokens one behind the other; of a token's its frames. 16 terms at
// a time are added by themselves, so that long sums keep their digits.
#include "anyop/ops/transducer_joint_backward.h"
#include "anyop/ops/transducer_joint_packed_backward.h"
#include "joint_pieces_cuda.h"

namespace anyop::cuda {
namespace {

template <typename T>
struct JointGradient {
  JointRows rows;
  const T *grad_out, *f, *g;
  T* out;
  bool of_frames, keeps_all;  // out is grad_f, else grad_g
};

template <typename T, int kPer>
__global__ void __launch_bounds__(kJointThreads)
    AddRows(const __grid_constant__ JointGradient<T> p) {
  using W = Wide<T>;
  constexpr int kTogether = 16;
  const Lattice& lattice = p.rows.lattice;
  const W scale = static_cast<W>(p.rows.numbers.scale);
  const int64_t of_sequence = p.of_frames ? lattice.T : lattice.U;
  p.rows.Each(lattice.B * of_sequence, [&](int64_t row, const auto& each_piece) {
    const int64_t b = row / of_sequence, own = row - b * of_sequence;
    const Lattice::Sequence s = lattice[b];
    const bool inside = s.good && own < (p.of_frames ? s.frames : s.tokens);
    const int64_t count = !inside ? 0 : p.of_frames ? s.tokens : s.frames;
    const T* const all = p.grad_out + (s.first + own * (p.of_frames ? s.stride : 1)) * p.rows.H;
    const int64_t step = (p.of_frames ? 1 : s.stride) * p.rows.H;
    each_piece([&](int64_t piece) {
      const int64_t h = piece * kPer;
      const T* const given = all + h;
      Piece<W, kPer> sums = {};
      for (int64_t first = 0; first < count; first += kTogether) {
        const int64_t left = count - first;
        const int n = left < kTogether ? static_cast<int>(left) : kTogether;
        Piece<W, kPer> few = {};
#pragma unroll 1
        for (int i = 0; i < n; ++i) {
          const auto d = ReadPiece<kPer>(given + (first + i) * step, true);
          bool kept[kPer];
          if (!p.keeps_all) {
            const int64_t t = p.of_frames ? own : first + i, u = p.of_frames ? first + i : own;
            const auto f = ReadPiece<kPer>(p.f + (b * lattice.T + t) * p.rows.H + h, true);
            const auto g = ReadPiece<kPer>(p.g + (b * lattice.U + u) * p.rows.H + h, true);
            FindKept(p.rows.numbers, lattice.PaddedRow({b, t, u, true}), h, f, g, kept);
          }
#pragma unroll
          for (int k = 0; k < kPer; ++k) few.at[k] += p.keeps_all || kept[k] ? d.at[k] : W(0);
        }
#pragma unroll
        for (int k = 0; k < kPer; ++k) sums.at[k] += few.at[k];
      }
#pragma unroll
      for (int k = 0; k < kPer; ++k) sums.at[k] *= scale;
      WritePiece<kPer>(p.out + row * p.rows.H + h, true, sums);
    });
  });
}

template <typename T, typename Args>
int32_t Run(const Args& args, AnyopCall* call, const AnyopTensor* batch_offset) {
  constexpr int kWhole = kPerVector<T>;
  const Lattice lattice =
      LatticeOf(args.f, args.g, args.f_len, args.g_len, batch_offset, args.grad_out);
  const JointNumbers numbers(args);
  const auto at = [](const AnyopTensor* tensor) { return static_cast<T*>(tensor->data); };
  for (const bool of_frames : {true, false}) {
    const AnyopTensor* out = of_frames ? args.grad_f : args.grad_g;
    const int64_t of_sequence = of_frames ? lattice.T : lattice.U;
    if (!out || lattice.B * of_sequence * args.H == 0) continue;
    const bool whole = args.H % kWhole == 0 && IsAligned(at(args.f), 16) &&
                       IsAligned(at(args.g), 16) && IsAligned(at(args.grad_out), 16) &&
                       IsAligned(at(out), 16);
    const JointRows rows(lattice, numbers, args.H, whole ? kWhole : 1);
    const JointGradient<T> p = {rows,    at(args.grad_out), at(args.f),        at(args.g),
                                at(out), of_frames,         numbers.KeepsAll()};
    const Launch launch = rows.LaunchFor(lattice.B * of_sequence);
    const int32_t status =
        whole ? launch.Run(call, AddRows<T, kWhole>, p) : launch.Run(call, AddRows<T, 1>, p);
    if (status) return status;
  }
  return kAnyopOk;
}

template <typename Args>
int32_t Join(const Args& args, AnyopCall* call, const AnyopTensor* batch_offset) {
  if (const int32_t status = CheckJoint(call, args)) return status;
  return WithFloating(AnyopDtypeOf(args.f),
                      [&](auto zero) { return Run<decltype(zero)>(args, call, batch_offset); });
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_transducer_joint_backward_cuda(const TransducerJointBackwardArgs* args,
                                                        AnyopCall* call) {
  return anyop::cuda::Join(*args, call, nullptr);
}
extern "C" int32_t anyop_transducer_joint_packed_backward_cuda(
    const TransducerJointPackedBackwardArgs* args, AnyopCall* call) {
  return anyop::cuda::Join(*args, call, args->batch_offset);
}
