// SPDX-License-Identifier: Apache-2.0
// Gradients of group_norm and group_norm_channels_last on the CPU: the sums of each channel of each
// n, joined in order, then from those of its group the gradient of x. Channels first, a thread does
// both for a group, so that the inputs are read again from its cache, where there are many groups.
#include "anyop/ops/group_norm_backward.h"

#include "anyop/ops/group_norm_channels_last_backward.h"
#include "channel_pixels.h"

namespace anyop::cpu {
namespace {

struct Work {
  ChannelPlanes planes;
  PlainRows grad_out, x, mean, rstd, weight, bias, grad_x, grad_weight, grad_bias;
  double* sums;   // of each n: of d of all channels, then of d * h
  char* numbers;  // of each n: kNumbers of all channels, as Wide
  char* parts;    // channels last: of each n and part the sums, as Wide
};

// Of each channel: grad_x = rstd * (weight * d - a - h * b), of h = (x - mean) * rstd and d, which
// is grad_out, or that before the activation.
constexpr int64_t kNumbers = 6;
template <typename Wide>
struct Numbers {
  Wide *mean, *rstd, *weight, *bias, *a, *b;

  Numbers(const Work& work, int64_t n, int64_t c) {
    const int64_t C = work.planes.C;
    mean = reinterpret_cast<Wide*>(work.numbers) + n * kNumbers * C + c;
    rstd = mean + C, weight = rstd + C, bias = weight + C, a = bias + C, b = a + C;
  }
  // Those of a channel: functions of x and of grad_out and h.
  auto ToH(int64_t c) const {
    return [mean = mean[c], rstd = rstd[c]](Wide v) { return (v - mean) * rstd; };
  }
  template <bool kSilu>
  auto ToD(int64_t c) const {
    return [weight = weight[c], bias = bias[c]](Wide g, Wide h) {
      return kSilu ? g * SiluSlope(h * weight + bias) : g;
    };
  }
  template <bool kSilu>
  auto ToGradient(int64_t c) const {
    return [h_of = ToH(c), d_of = ToD<kSilu>(c), rstd = rstd[c], weight = weight[c], a = a[c],
            b = b[c]](Wide g, Wide v) {
      const Wide h = h_of(v);
      return rstd * (weight * d_of(g, h) - a - h * b);
    };
  }
};
template <typename Wide>
inline void PutNumbers(const Work& work, int64_t group) {
  const ChannelPlanes& p = work.planes;
  const int64_t first = group % p.G * p.of_group(), n = p.of_group();
  const Numbers<Wide> to(work, group / p.G, first);
  ReadNumbers(work.weight, first, n, Wide{1}, to.weight);
  ReadNumbers(work.bias, first, n, Wide{0}, to.bias);
  for (int64_t c = 0; c < n; ++c) {
    to.mean[c] = reinterpret_cast<const Wide*>(work.mean.data)[group];
    to.rstd[c] = reinterpret_cast<const Wide*>(work.rstd.data)[group];
  }
}

// Channels first: the sums of one channel, and its gradient.
template <typename E, bool kSilu>
inline void SumsOfChannel(const Work& work, int64_t unit) {
  const ChannelPlanes& p = work.planes;
  const Numbers<typename WideOf<E>::Type> numbers(work, unit / p.C, unit % p.C);
  RunReader<E> g(work.grad_out), x(work.x);
  double sums[2] = {};
  ForRun(unit * p.S, p.S, [&](const Place& place) {
    AddRun(place.n, g.Read(place).data, x.Read(place).data, numbers.ToH(0),
           numbers.template ToD<kSilu>(0), sums);
  });
  double* to = work.sums + unit / p.C * 2 * p.C + unit % p.C;
  to[0] = sums[0], to[p.C] = sums[1];
}
template <typename E, bool kSilu>
inline void GradientOfChannel(const Work& work, int64_t unit) {
  const ChannelPlanes& p = work.planes;
  const Numbers<typename WideOf<E>::Type> numbers(work, unit / p.C, unit % p.C);
  RunReader<E> g(work.grad_out), x(work.x);
  RunWriter<E> to(work.grad_x);
  const auto gradient = [f = numbers.template ToGradient<kSilu>(0)](int64_t) { return f; };
  ForRun(unit * p.S, p.S, [&](const Place& place) {
    MapPixels(place, std::make_index_sequence<1>(), gradient, to, g.Read(place), x.Read(place));
  });
}

// Channels last: the same of a part.
template <typename E, bool kSilu>
inline void SumsOfPart(const Work& work, int64_t unit) {
  using Wide = typename WideOf<E>::Type;
  const ChannelPlanes& p = work.planes;
  RunReader<E> g(work.grad_out), x(work.x);
  Wide* sums = reinterpret_cast<Wide*>(work.parts) + unit * 2 * p.C;
  for (int64_t i = 0; i < 2 * p.C; ++i) sums[i] = 0;
  ForPlaces<kPixelsSummed>(p, unit, [&](const Place& place, auto pixels, int64_t at) {
    const Numbers<Wide> numbers(work, unit / p.parts(), at);
    AddPixels(
        place, g.Read(place), x.Read(place), pixels, [=](int64_t c) { return numbers.ToH(c); },
        [=](int64_t c) { return numbers.template ToD<kSilu>(c); }, sums + at, sums + p.C + at);
  });
}
template <typename E, bool kSilu>
inline void GradientOfPart(const Work& work, int64_t unit) {
  const ChannelPlanes& p = work.planes;
  RunReader<E> g(work.grad_out), x(work.x);
  RunWriter<E> to(work.grad_x);
  ForPlaces<kPixelsMapped<E>>(p, unit, [&](const Place& place, auto pixels, int64_t at) {
    const Numbers<typename WideOf<E>::Type> numbers(work, unit / p.parts(), at);
    const auto gradient = [=](int64_t c) { return numbers.template ToGradient<kSilu>(c); };
    MapPixels(place, pixels, gradient, to, g.Read(place), x.Read(place));
  });
}

// One group: the parts' sums of its channels joined, and the means of weight * d and weight * d *
// h.
template <typename Wide>
inline void JoinGroup(const Work& work, int64_t group) {
  const ChannelPlanes& p = work.planes;
  const int64_t n = group / p.G, first = group % p.G * p.of_group(), channels = p.of_group();
  double *of_d = work.sums + n * 2 * p.C + first, *products = of_d + p.C;
  if (p.last) {
    for (int64_t c = 0; c < channels; ++c) of_d[c] = products[c] = 0;
    for (int64_t unit = n * p.parts(); unit < (n + 1) * p.parts(); ++unit) {
      const Wide* part = reinterpret_cast<const Wide*>(work.parts) + unit * 2 * p.C + first;
#pragma omp simd
      for (int64_t c = 0; c < channels; ++c) of_d[c] += part[c], products[c] += part[p.C + c];
    }
  }
  const Numbers<Wide> numbers(work, n, first);
  double a = 0, b = 0;
  for (int64_t c = 0; c < channels; ++c)
    a += numbers.weight[c] * of_d[c], b += numbers.weight[c] * products[c];
  const auto count = static_cast<double>(channels * p.S);
  for (int64_t c = 0; c < channels; ++c)
    numbers.a[c] = static_cast<Wide>(a / count), numbers.b[c] = static_cast<Wide>(b / count);
}
// Gradients of parameters, over all n in order.
template <typename Wide>
inline void WriteOfParameters(const Work& work, int64_t unit) {
  const int64_t C = work.planes.C, first = unit * kJoined,
                size = C - first < kJoined ? C - first : kJoined;
  const auto write = [&](const PlainRows& to, const double* sums) {
    if (!to.data) return;
    double total[kJoined] = {};
    for (int64_t n = 0; n < work.planes.N; ++n) {
#pragma omp simd
      for (int64_t c = 0; c < size; ++c) total[c] += sums[n * 2 * C + first + c];
    }
    RowWriter<Wide> row(to.dtype, to.At(first));
    NarrowTo(total, size, row.Target(0));
    row.Write(0, size);
  };
  write(work.grad_bias, work.sums);
  write(work.grad_weight, work.sums + C);
}

// each(E(), silu, unit) for units from begin on.
template <typename Each>
inline void ForGradients(const Work* work, int64_t begin, int64_t end, Each each) {
  ForUnitsInPlace(work->x.dtype, false, work->planes.silu, begin, end,
                  [&](auto element, int64_t unit) {
                    work->planes.silu ? each(element, std::true_type(), unit)
                                      : each(element, std::false_type(), unit);
                  });
}
ANYOP_CPU_CLONES void Units(const Work* work, int64_t begin, int64_t end) {
  ForGradients(work, begin, end, [&](auto element, auto silu, int64_t unit) {
    using E = decltype(element);
    work->planes.last ? SumsOfPart<E, silu>(*work, unit) : SumsOfChannel<E, silu>(*work, unit);
  });
}
ANYOP_CPU_CLONES void Gradients(const Work* work, int64_t begin, int64_t end) {
  ForGradients(work, begin, end, [&](auto element, auto silu, int64_t unit) {
    using E = decltype(element);
    work->planes.last ? GradientOfPart<E, silu>(*work, unit)
                      : GradientOfChannel<E, silu>(*work, unit);
  });
}
ANYOP_CPU_CLONES void Fill(const Work* work, int64_t begin, int64_t end) {
  ForUnits(work, begin, end,
           [&](auto wide, int64_t group) { PutNumbers<decltype(wide)>(*work, group); });
}
ANYOP_CPU_CLONES void Joins(const Work* work, int64_t begin, int64_t end) {
  ForUnits(work, begin, end,
           [&](auto wide, int64_t group) { JoinGroup<decltype(wide)>(*work, group); });
}
ANYOP_CPU_CLONES void OfParameters(const Work* work, int64_t begin, int64_t end) {
  ForUnits(work, begin, end,
           [&](auto wide, int64_t c) { WriteOfParameters<decltype(wide)>(*work, c); });
}
// Channels first: all of some groups.
void Groups(const Work* work, int64_t begin, int64_t end) {
  const int64_t channels = work->planes.of_group();
  for (int64_t group = begin; group < end; ++group) {
    Units(work, group * channels, (group + 1) * channels);
    Joins(work, group, group + 1);
    if (work->grad_x.data) Gradients(work, group * channels, (group + 1) * channels);
  }
}

template <typename Args>
int32_t RunGradients(const Args& args, AnyopCall* call, bool last) {
  Work work = {{args.N, args.C, args.numel_S, args.groups, last, IsSilu(args.activation)},
               PlainRows(args.grad_out),
               PlainRows(args.x),
               PlainRows(args.mean),
               PlainRows(args.rstd),
               PlainRows(args.weight),
               PlainRows(args.bias),
               PlainRows(args.grad_x),
               PlainRows(args.grad_weight),
               PlainRows(args.grad_bias),
               nullptr,
               nullptr,
               nullptr};
  const ChannelPlanes& p = work.planes;
  const int64_t units = p.N * (last ? p.parts() : p.C), of_unit = last ? p.kPixels * p.C : p.S,
                groups = p.N * p.G, item_bytes = work.x.dtype == kAnyopFloat64 ? 8 : 4;
  const int64_t sums_bytes = p.N * 2 * p.C * int64_t{sizeof(double)},
                numbers_bytes = p.N * kNumbers * p.C * item_bytes,
                bytes = sums_bytes + numbers_bytes + (last ? units * 2 * p.C * item_bytes : 0);
  auto* memory = static_cast<char*>(call->workspace(call, bytes));
  if (!memory && bytes) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  work.sums = reinterpret_cast<double*>(memory);
  work.numbers = memory + sums_bytes;
  work.parts = work.numbers + numbers_bytes;
  RunRows(call, &work, groups, 8 * p.of_group(), Fill);
  constexpr int64_t kManyGroups = 32;
  if (!last && groups >= kManyGroups) {
    RunRows(call, &work, groups, 2 * p.of_group() * p.S, Groups);
  } else {
    RunRows(call, &work, units, of_unit, Units);
    RunRows(call, &work, groups, (last ? p.parts() : 1) * p.of_group(), Joins);
    if (work.grad_x.data) RunRows(call, &work, units, of_unit, Gradients);
  }
  if (work.grad_weight.data || work.grad_bias.data)
    RunRows(call, &work, (p.C + kJoined - 1) / kJoined, p.N * kJoined, OfParameters);
  return kAnyopOk;
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_group_norm_backward_cpu(const GroupNormBackwardArgs* args,
                                                 AnyopCall* call) {
  return anyop::cpu::RunGradients(*args, call, false);
}
extern "C" int32_t anyop_group_norm_channels_last_backward_cpu(
    const GroupNormChannelsLastBackwardArgs* args, AnyopCall* call) {
  return anyop::cpu::RunGradients(*args, call, true);
}
