// SPDX-License-Identifier: Apache-2.0
// group_norm and group_norm_channels_last on the CPU. Channels first: a group is one run of memory,
// read once and then from the cache. Last: parts of some pixels give the moments of each channel,
// which are joined in order, and the parts are read again: the same bits for any number of threads.
#include "anyop/ops/group_norm.h"

#include "anyop/ops/group_norm_channels_last.h"
#include "channel_pixels.h"

namespace anyop::cpu {
namespace {

struct Work {
  ChannelPlanes planes;
  PlainRows x, weight, bias, out, mean, rstd;
  double eps;
  char* moments;  // of each n, part and channel: mean and squares, as Wide
  char* numbers;  // of each n: mean, rstd * weight, bias of all channels, as Wide
};

template <typename Wide>
inline void WriteMoments(const Work& work, int64_t group, const Moments& moments, int64_t count) {
  const double variance = count > 0 ? moments.squares / static_cast<double>(count) : 0;
  reinterpret_cast<Wide*>(work.mean.data)[group] = static_cast<Wide>(moments.mean);
  reinterpret_cast<Wide*>(work.rstd.data)[group] =
      static_cast<Wide>(1 / __builtin_sqrt(variance + work.eps));
}

template <bool kSilu, typename Wide>
inline Wide Normal(Wide v, Wide mean, Wide scale, Wide bias) {
  const Wide z = (v - mean) * scale + bias;
  return kSilu ? Silu(z) : z;
}

// Channels first: one group.
template <typename E, bool kSilu>
inline void NormalizeGroup(const Work& work, int64_t group) {
  using Wide = typename WideOf<E>::Type;
  const ChannelPlanes& p = work.planes;
  const int64_t D = p.of_group() * p.S, first = group % p.G * p.of_group();
  WriteMoments<Wide>(work, group, MomentsOfRun<E>(work.x, group * D, D), D);
  const Wide mean = reinterpret_cast<Wide*>(work.mean.data)[group],
             rstd = reinterpret_cast<Wide*>(work.rstd.data)[group];
  RunReader<E> in(work.x);
  RunWriter<E> to(work.out);
  Wide weight[kJoined], bias[kJoined];
  for (int64_t c = 0; c < p.of_group(); ++c) {
    const int64_t i = c % kJoined, left = p.of_group() - c;
    if (i == 0) {
      ReadNumbers(work.weight, first + c, left < kJoined ? left : kJoined, Wide{1}, weight);
      ReadNumbers(work.bias, first + c, left < kJoined ? left : kJoined, Wide{0}, bias);
    }
    const auto normal = [mean, scale = rstd * weight[i], bias = bias[i]](int64_t) {
      return [=](Wide v) { return Normal<kSilu>(v, mean, scale, bias); };
    };
    ForRun(group * D + c * p.S, p.S, [&](const Place& place) {
      MapPixels(place, std::make_index_sequence<1>(), normal, to, in.Read(place));
    });
  }
}

// Channels last: of each channel of a part, the mean and the squared distances from it.
template <typename E>
inline void MomentsOfPart(const Work& work, int64_t unit) {
  const ChannelPlanes& p = work.planes;
  auto* means = reinterpret_cast<typename WideOf<E>::Type*>(work.moments) + unit * 2 * p.C;
  RunReader<E> in(work.x);
  ForBlocks(p.C, [&](int64_t at, int64_t size) {
    MomentsOfPixels(in, p.FirstOf(unit) + at, size, p.PixelsOf(unit), p.C, means + at,
                    means + p.C + at);
  });
}
// One group: its moments, and the numbers of its channels.
template <typename Wide>
inline void JoinMoments(const Work& work, int64_t group) {
  const ChannelPlanes& p = work.planes;
  const int64_t n = group / p.G, first = group % p.G * p.of_group(), count = p.of_group() * p.S;
  const auto for_parts = [&](auto use) {
    for (int64_t unit = n * p.parts(); unit < (n + 1) * p.parts(); ++unit) {
      const Wide* means = reinterpret_cast<const Wide*>(work.moments) + unit * 2 * p.C + first;
      use(static_cast<double>(p.PixelsOf(unit)), means, means + p.C);
    }
  };
  double mean = 0, squares = 0;
  for_parts([&](double pixels, const Wide* means, const Wide*) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < p.of_group(); ++c) sum += static_cast<double>(means[c]);
    mean += pixels * sum;
  });
  mean /= static_cast<double>(count > 0 ? count : 1);
  for_parts([&](double pixels, const Wide* means, const Wide* more) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < p.of_group(); ++c) {
      const double far = static_cast<double>(means[c]) - mean;
      sum += static_cast<double>(more[c]) + pixels * far * far;
    }
    squares += sum;
  });
  WriteMoments<Wide>(work, group, {mean, squares}, count);
  Wide* numbers = reinterpret_cast<Wide*>(work.numbers) + n * 3 * p.C + first;
  ReadNumbers(work.weight, first, p.of_group(), Wide{1}, numbers + p.C);
  ReadNumbers(work.bias, first, p.of_group(), Wide{0}, numbers + 2 * p.C);
  for (int64_t c = 0; c < p.of_group(); ++c) {
    numbers[c] = reinterpret_cast<Wide*>(work.mean.data)[group];
    numbers[p.C + c] *= reinterpret_cast<Wide*>(work.rstd.data)[group];
  }
}
template <typename E, bool kSilu>
inline void NormalizePart(const Work& work, int64_t unit) {
  using Wide = typename WideOf<E>::Type;
  const ChannelPlanes& p = work.planes;
  const Wide *means = reinterpret_cast<Wide*>(work.numbers) + unit / p.parts() * 3 * p.C,
             *scales = means + p.C, *biases = scales + p.C;
  RunReader<E> in(work.x);
  RunWriter<E> to(work.out);
  ForPlaces<kPixelsMapped<E>>(p, unit, [&](const Place& place, auto pixels, int64_t at) {
    const auto normal = [=](int64_t i) {
      return [mean = means[at + i], scale = scales[at + i], bias = biases[at + i]](Wide v) {
        return Normal<kSilu>(v, mean, scale, bias);
      };
    };
    MapPixels(place, pixels, normal, to, in.Read(place));
  });
}

ANYOP_CPU_CLONES void Groups(const Work* work, int64_t begin, int64_t end) {
  ForUnitsInPlace(work->x.dtype, false, work->planes.silu, begin, end,
                  [&](auto element, int64_t unit) {
                    using E = decltype(element);
                    work->planes.silu ? NormalizeGroup<E, true>(*work, unit)
                                      : NormalizeGroup<E, false>(*work, unit);
                  });
}
ANYOP_CPU_CLONES void PartMoments(const Work* work, int64_t begin, int64_t end) {
  ForUnitsInPlace(work->x.dtype, false, false, begin, end, [&](auto element, int64_t unit) {
    MomentsOfPart<decltype(element)>(*work, unit);
  });
}
ANYOP_CPU_CLONES void Joins(const Work* work, int64_t begin, int64_t end) {
  ForUnits(work, begin, end,
           [&](auto wide, int64_t group) { JoinMoments<decltype(wide)>(*work, group); });
}
ANYOP_CPU_CLONES void Parts(const Work* work, int64_t begin, int64_t end) {
  ForUnitsInPlace(work->x.dtype, false, work->planes.silu, begin, end,
                  [&](auto element, int64_t unit) {
                    using E = decltype(element);
                    work->planes.silu ? NormalizePart<E, true>(*work, unit)
                                      : NormalizePart<E, false>(*work, unit);
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
               nullptr,
               nullptr};
  const ChannelPlanes& p = work.planes;
  if (!last) return RunRows(call, &work, p.N * p.G, p.of_group() * p.S, Groups);
  const int64_t units = p.N * p.parts(), of_part = p.kPixels * p.C;
  const int64_t item_bytes = work.x.dtype == kAnyopFloat64 ? 8 : 4,
                moments_bytes = units * 2 * p.C * item_bytes,
                bytes = moments_bytes + p.N * 3 * p.C * item_bytes;
  work.moments = static_cast<char*>(call->workspace(call, bytes));
  if (!work.moments && bytes)
    return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  work.numbers = work.moments + moments_bytes;
  RunRows(call, &work, units, of_part, PartMoments);
  RunRows(call, &work, p.N * p.G, p.parts() * p.of_group() * 2, Joins);
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
