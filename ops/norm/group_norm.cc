// SPDX-License-Identifier: Apache-2.0
// group_norm and group_norm_channels_last on the CPU. Channels first: a group is one run of memory,
// read once and then from the cache. Last: parts of some pixels give the moments of each channel,
// which are joined in order, and the parts are read again: the same bits for any number of threads.
#include "anyop/ops/group_norm.h"

#include "anyop/ops/group_norm_channels_last.h"
#include "channel_planes.h"

namespace anyop::cpu {
namespace {

struct Work {
  ChannelPlanes planes;
  PlainRows x, weight, bias, out, mean, rstd;
  double eps;
  char* moments;  // of each n, part and channel: mean and squares, as Wide
};

template <typename Wide>
inline void WriteMoments(const Work& work, int64_t group, const Moments& moments, int64_t count) {
  const double variance = count > 0 ? moments.squares / static_cast<double>(count) : 0;
  reinterpret_cast<Wide*>(work.mean.data)[group] = static_cast<Wide>(moments.mean);
  reinterpret_cast<Wide*>(work.rstd.data)[group] =
      static_cast<Wide>(1 / __builtin_sqrt(variance + work.eps));
}

template <typename Wide, bool kSilu>
inline Wide Normal(Wide v, Wide mean, Wide scale, Wide bias) {
  const Wide z = (v - mean) * scale + bias;
  return kSilu ? Silu(z) : z;
}

// Channels first: one group.
template <typename Wide, bool kSilu>
inline void NormalizeGroup(const Work& work, int64_t group) {
  const ChannelPlanes& p = work.planes;
  const int64_t D = p.of_group() * p.S;
  RowReader<Wide> in(work.x.dtype, work.x.At(group * D), D);
  WriteMoments<Wide>(work, group, MomentsOf(D, in), D);
  const Wide mean = reinterpret_cast<Wide*>(work.mean.data)[group],
             rstd = reinterpret_cast<Wide*>(work.rstd.data)[group];
  for (int64_t c = 0; c < p.of_group(); ++c) {
    const int64_t channel = group % p.G * p.of_group() + c, at = group * D + c * p.S;
    const Wide scale = rstd * OfChannel(work.weight, channel, Wide{1}),
               bias = OfChannel(work.bias, channel, Wide{0});
    RowReader<Wide> row(work.x.dtype, work.x.At(at), p.S);
    RowWriter<Wide> to(work.out.dtype, work.out.At(at));
    MapRow(p.S, [=](Wide v) { return Normal<Wide, kSilu>(v, mean, scale, bias); }, to, row);
  }
}

// Channels last: of each channel of a part, the mean and the squared distances from it.
template <typename Wide>
inline void MomentsOfPart(const Work& work, int64_t unit) {
  const ChannelPlanes& p = work.planes;
  const int64_t n = unit / p.parts(), part = unit % p.parts(), first = part * p.kPixels;
  Wide* means = reinterpret_cast<Wide*>(work.moments) + unit * 2 * p.C;
  const Wide inverse = 1 / static_cast<Wide>(p.Behind(part) - first);
  ForBlocks(p.C, [&](int64_t at, int64_t size) {
    Wide *mean = means + at, *squares = means + p.C + at;
    const auto for_pixels = [&](auto use) {
      for (int64_t s = first; s < p.Behind(part); ++s) {
        RowReader<Wide, kBlock> in(work.x.dtype, work.x.At((n * p.S + s) * p.C + at), size);
        use(in.Read(0, size));
      }
    };
    for (int64_t i = 0; i < size; ++i) mean[i] = squares[i] = 0;
    for_pixels([&](const Wide* x) {
      Apply(size, [](Wide sum, Wide v) { return sum + v; }, mean, mean, x);
    });
    Apply(size, [inverse](Wide sum) { return sum * inverse; }, mean, mean);
    for_pixels([&](const Wide* x) {
      const auto add = [](Wide sum, Wide v, Wide m) { return sum + (v - m) * (v - m); };
      Apply(size, add, squares, squares, x, mean);
    });
  });
}
// The groups of one n.
template <typename Wide>
inline void JoinMoments(const Work& work, int64_t n) {
  const ChannelPlanes& p = work.planes;
  for (int64_t g = 0; g < p.G; ++g) {
    const int64_t count = p.of_group() * p.S;
    const auto for_moments = [&](auto use) {
      for (int64_t part = 0; part < p.parts(); ++part) {
        const Wide* means =
            reinterpret_cast<const Wide*>(work.moments) + (n * p.parts() + part) * 2 * p.C;
        const auto pixels = static_cast<double>(p.Behind(part) - part * p.kPixels);
        for (int64_t c = g * p.of_group(); c < (g + 1) * p.of_group(); ++c)
          use(pixels, means[c], means[p.C + c]);
      }
    };
    Moments all;
    for_moments([&](double pixels, double mean, double) { all.mean += pixels * mean; });
    all.mean /= static_cast<double>(count > 0 ? count : 1);
    for_moments([&](double pixels, double mean, double squares) {
      all.squares += squares + pixels * (mean - all.mean) * (mean - all.mean);
    });
    WriteMoments<Wide>(work, n * p.G + g, all, count);
  }
}
template <typename Wide, bool kSilu>
inline void NormalizePart(const Work& work, int64_t unit) {
  const ChannelPlanes& p = work.planes;
  const int64_t n = unit / p.parts(), part = unit % p.parts();
  ForBlocks(p.C, [&](int64_t at, int64_t size) {
    Wide mean[kBlock], scale[kBlock], bias[kBlock];
    for (int64_t i = 0; i < size; ++i) {
      const int64_t group = p.GroupOf(n, at + i);
      mean[i] = reinterpret_cast<Wide*>(work.mean.data)[group];
      scale[i] =
          reinterpret_cast<Wide*>(work.rstd.data)[group] * OfChannel(work.weight, at + i, Wide{1});
      bias[i] = OfChannel(work.bias, at + i, Wide{0});
    }
    for (int64_t s = part * p.kPixels; s < p.Behind(part); ++s) {
      const int64_t row = (n * p.S + s) * p.C + at;
      RowReader<Wide, kBlock> in(work.x.dtype, work.x.At(row), size);
      RowWriter<Wide> to(work.out.dtype, work.out.At(row));
      const auto normal = [](Wide v, Wide m, Wide w, Wide b) {
        return Normal<Wide, kSilu>(v, m, w, b);
      };
      Apply(size, normal, to.Target(0), in.Read(0, size), mean, scale, bias);
      to.Write(0, size);
    }
  });
}

ANYOP_CPU_CLONES void Groups(const Work* work, int64_t begin, int64_t end) {
  ForUnits(work, begin, end, [&](auto wide, int64_t unit) {
    using Wide = decltype(wide);
    work->planes.silu ? NormalizeGroup<Wide, true>(*work, unit)
                      : NormalizeGroup<Wide, false>(*work, unit);
  });
}
ANYOP_CPU_CLONES void PartMoments(const Work* work, int64_t begin, int64_t end) {
  ForUnits(work, begin, end,
           [&](auto wide, int64_t unit) { MomentsOfPart<decltype(wide)>(*work, unit); });
}
ANYOP_CPU_CLONES void Joins(const Work* work, int64_t begin, int64_t end) {
  ForUnits(work, begin, end,
           [&](auto wide, int64_t unit) { JoinMoments<decltype(wide)>(*work, unit); });
}
ANYOP_CPU_CLONES void Parts(const Work* work, int64_t begin, int64_t end) {
  ForUnits(work, begin, end, [&](auto wide, int64_t unit) {
    using Wide = decltype(wide);
    work->planes.silu ? NormalizePart<Wide, true>(*work, unit)
                      : NormalizePart<Wide, false>(*work, unit);
  });
}

template <typename Args>
int32_t RunGroups(const Args& args, AnyopCall* call, bool last) {
  Work work = {{args.N, args.C, args.numel_S, args.groups, last, IsSilu(args.activation)},
               PlainRows(args.x),
               PlainRows(args.weight),
               PlainRows(args.bias),
               PlainRows(args.out),
               PlainRows(args.mean),
               PlainRows(args.rstd),
               args.eps,
               nullptr};
  const ChannelPlanes& p = work.planes;
  if (!last) return RunRows(call, &work, p.N * p.G, p.of_group() * p.S, Groups);
  const int64_t units = p.N * p.parts(), of_part = p.kPixels * p.C;
  const int64_t bytes = units * 2 * p.C * (work.x.dtype == kAnyopFloat64 ? 8 : 4);
  work.moments = static_cast<char*>(call->workspace(call, bytes));
  if (!work.moments && bytes)
    return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  RunRows(call, &work, units, of_part, PartMoments);
  RunRows(call, &work, p.N, p.parts() * p.C * 8, Joins);
  return RunRows(call, &work, units, of_part, Parts);
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_group_norm_cpu(const GroupNormArgs* args, AnyopCall* call) {
  return anyop::cpu::RunGroups(*args, call, false);
}
extern "C" int32_t anyop_group_norm_channels_last_cpu(const GroupNormChannelsLastArgs* args,
                                                      AnyopCall* call) {
  return anyop::cpu::RunGroups(*args, call, true);
}
