// SPDX-License-Identifier: Apache-2.0
// batch_norm_apply and batch_norm_apply_channels_last on the CPU: rows, or parts of some pixels;
// with a mask block by block of memory, so that a byte of it belongs to one thread.
#include "anyop/ops/batch_norm_apply.h"

#include "anyop/ops/batch_norm_apply_channels_last.h"
#include "channel_pixels.h"

namespace anyop::cpu {
namespace {

struct Work {
  ChannelRuns runs;
  PlainRows x, residual, out;
  uint8_t* mask;
  bool relu;
  char* numbers;  // of each channel: mean, rstd * weight, bias, as Wide
};

template <typename Wide>
inline void WriteMask(int64_t n, const Wide* z, uint8_t* to) {
  for (int64_t i = 0; i < n; i += 8, ++to) {
    const int64_t left = n - i < 8 ? n - i : 8;
    unsigned bits = 0;
    for (int64_t j = 0; j < left; ++j) bits |= static_cast<unsigned>(!(z[i + j] <= 0)) << j;
    *to = static_cast<uint8_t>(bits);
  }
}

// Without a mask.
template <typename E>
inline void ApplyPiece(const Work& work, int64_t piece) {
  using Wide = typename WideOf<E>::Type;
  const Wide *means = reinterpret_cast<const Wide*>(work.numbers), *scales = means + work.runs.C,
             *biases = scales + work.runs.C;
  const Wide least = work.relu ? 0 : Bits<Wide>::kNaN;  // what is not above it becomes 0
  RunReader<E> in(work.x), more(work.residual);
  RunWriter<E> to(work.out);
  ForPlaces<E>(work.runs, piece, [&](const Place& place, auto pixels, auto channel) {
    const auto normal = [=](int64_t c) {
      return
          [=, m = means[c], s = scales[c], b = biases[c]](const auto& v, const auto&... residual) {
            const auto z = (((v - m) * s + b) + ... + residual);
            return z <= least ? std::remove_const_t<decltype(z)>{} : z;
          };
    };
    if (!work.residual.data) return MapChannels(place, pixels, channel, normal, to, in.Read(place));
    MapChannels(place, pixels, channel, normal, to, in.Read(place), more.Read(place));
  });
}

template <typename Wide>
inline void ApplyBlock(const Work& work, int64_t block) {
  const int64_t begin = block * kBlock, n = work.runs.SizeOf(block);
  const Wide *means = reinterpret_cast<const Wide*>(work.numbers), *scales = means + work.runs.C,
             *biases = scales + work.runs.C;
  RowReader<Wide, kBlock> in(work.x.dtype, work.x.At(begin), n);
  RowWriter<Wide> to(work.out.dtype, work.out.At(begin));
  const Wide* x = in.Read(0, n);
  Wide* z = to.Target(0);
  work.runs.Cut(block, [&](int64_t at, int64_t size, int64_t c) {
    if (work.runs.last()) {
      const auto normal = [](Wide v, Wide m, Wide s, Wide b) { return (v - m) * s + b; };
      return Apply(size, normal, z + at, x + at, means + c, scales + c, biases + c);
    }
    const Wide m = means[c], s = scales[c], b = biases[c];
    Apply(size, [=](Wide v) { return (v - m) * s + b; }, z + at, x + at);
  });
  if (work.residual.data) {
    RowReader<Wide, kBlock> more(work.residual.dtype, work.residual.At(begin), n);
    Apply(n, [](Wide a, Wide b) { return a + b; }, z, z, more.Read(0, n));
  }
  WriteMask(n, z, work.mask + begin / 8);
  if (work.relu) Apply(n, [](Wide v) { return v <= 0 ? 0 : v; }, z, z);
  to.Write(0, n);
}

ANYOP_CPU_CLONES void Blocks(const Work* work, int64_t begin, int64_t end) {
  ForUnits(work, begin, end,
           [&](auto wide, int64_t block) { ApplyBlock<decltype(wide)>(*work, block); });
}

ANYOP_CPU_CLONES void Pieces(const Work* work, int64_t begin, int64_t end) {
  ForUnitsInPlace(
      work->x.dtype, !work->runs.last(), false, begin, end,
      [&](auto element, int64_t piece) { ApplyPiece<decltype(element)>(*work, piece); });
}

template <typename Wide, typename Args>
void PutNumbers(const Args& args, Wide* to) {
  ReadNumbers(PlainRows(args.weight), 0, args.C, Wide{1}, to + args.C);
  ReadNumbers(PlainRows(args.bias), 0, args.C, Wide{0}, to + 2 * args.C);
  for (int64_t c = 0; c < args.C; ++c) {
    to[c] = static_cast<const Wide*>(args.mean->data)[c];
    to[args.C + c] *= static_cast<const Wide*>(args.rstd->data)[c];
  }
}

template <typename Args>
int32_t RunApply(const Args& args, AnyopCall* call, bool last) {
  Work work = {{args.N, args.C, args.numel_S, last},
               PlainRows(args.x),
               PlainRows(args.residual),
               PlainRows(args.out),
               MaskOf(args.mask),
               args.relu != 0,
               nullptr};
  if (work.runs.count == 0) return kAnyopOk;
  const int64_t bytes = 3 * args.C * (work.x.dtype == kAnyopFloat64 ? 8 : 4);
  work.numbers = static_cast<char*>(call->workspace(call, bytes));
  if (!work.numbers) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  WithFloat(work.x.dtype,
            [&](auto wide) { PutNumbers(args, reinterpret_cast<decltype(wide)*>(work.numbers)); });
  if (work.mask) return RunRows(call, &work, work.runs.blocks(), kBlock, Blocks);
  return RunRows(call, &work, work.runs.pieces(), work.runs.of_piece(), Pieces);
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_batch_norm_apply_cpu(const BatchNormApplyArgs* args, AnyopCall* call) {
  return anyop::cpu::RunApply(*args, call, false);
}
extern "C" int32_t anyop_batch_norm_apply_channels_last_cpu(
    const BatchNormApplyChannelsLastArgs* args, AnyopCall* call) {
  return anyop::cpu::RunApply(*args, call, true);
}
