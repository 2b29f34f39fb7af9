// SPDX-License-Identifier: Apache-2.0
// Gradients of group_norm and group_norm_channels_last on the CPU: the sums of each channel of each
// n, joined in order, then from those of its group the gradient of x: both inputs are read twice.
#include "anyop/ops/group_norm_backward.h"

#include "anyop/ops/group_norm_channels_last_backward.h"
#include "channel_planes.h"

namespace anyop::cpu {
namespace {

struct Work {
  ChannelPlanes planes;
  PlainRows grad_out, x, mean, rstd, weight, bias, grad_x, grad_weight, grad_bias;
  double* sums;   // of each n and channel: of d, of d * h
  double* means;  // of each n and group: of weight * d, of weight * d * h
  char* parts;    // channels last: of each n, part and channel the sums, as Wide
};

// What is known of a channel of one n.
template <typename Wide>
struct Channel {
  Wide mean, rstd, weight, bias;

  Channel() = default;
  Channel(const Work& work, int64_t n, int64_t c) {
    const int64_t group = work.planes.GroupOf(n, c);
    mean = reinterpret_cast<const Wide*>(work.mean.data)[group];
    rstd = reinterpret_cast<const Wide*>(work.rstd.data)[group];
    weight = OfChannel(work.weight, c, Wide{1});
    bias = OfChannel(work.bias, c, Wide{0});
  }
};
template <typename Wide, bool kSilu>
inline Wide Inner(Wide g, Wide h, Wide weight, Wide bias) {
  return kSilu ? g * SiluSlope(h * weight + bias) : g;
}

// Channels first: the sums of one channel, and its gradient.
template <typename Wide, bool kSilu>
inline void SumsOfChannel(const Work& work, int64_t unit) {
  const ChannelPlanes& p = work.planes;
  const Channel<Wide> c(work, unit / p.C, unit % p.C);
  RowReader<Wide> g(work.grad_out.dtype, work.grad_out.At(unit * p.S), p.S),
      x(work.x.dtype, work.x.At(unit * p.S), p.S);
  const auto inner = [=](Wide g, Wide v) {
    return Inner<Wide, kSilu>(g, (v - c.mean) * c.rstd, c.weight, c.bias);
  };
  const auto product = [=](Wide g, Wide v) { return inner(g, v) * ((v - c.mean) * c.rstd); };
  work.sums[2 * unit] = Sum(p.S, inner, g, x);
  work.sums[2 * unit + 1] = Sum(p.S, product, g, x);
}
template <typename Wide, bool kSilu>
inline void GradientOfChannel(const Work& work, int64_t unit) {
  const ChannelPlanes& p = work.planes;
  const int64_t n = unit / p.C, group = p.GroupOf(n, unit % p.C);
  const Channel<Wide> c(work, n, unit % p.C);
  const Wide a = static_cast<Wide>(work.means[2 * group]),
             b = static_cast<Wide>(work.means[2 * group + 1]);
  RowReader<Wide> g(work.grad_out.dtype, work.grad_out.At(unit * p.S), p.S),
      x(work.x.dtype, work.x.At(unit * p.S), p.S);
  RowWriter<Wide> to(work.grad_x.dtype, work.grad_x.At(unit * p.S));
  const auto gradient = [=](Wide g, Wide v) {
    const Wide h = (v - c.mean) * c.rstd;
    return c.rstd * (c.weight * Inner<Wide, kSilu>(g, h, c.weight, c.bias) - a - h * b);
  };
  MapRow(p.S, gradient, to, g, x);
}

// Channels last: up to kBlock channels of a part, pixel by pixel.
template <typename Wide>
struct ChannelBlock {
  Wide mean[kBlock], rstd[kBlock], weight[kBlock], bias[kBlock];

  ChannelBlock(const Work& work, int64_t n, int64_t at, int64_t size) {
    for (int64_t i = 0; i < size; ++i) {
      const Channel<Wide> c(work, n, at + i);
      mean[i] = c.mean, rstd[i] = c.rstd, weight[i] = c.weight, bias[i] = c.bias;
    }
  }
};
// use(element, h, d) for each pixel of a part.
template <typename Wide, bool kSilu, typename Use>
inline void ForPixels(const Work& work, int64_t unit, int64_t at, int64_t size,
                      const ChannelBlock<Wide>& c, Use use) {
  const ChannelPlanes& p = work.planes;
  const int64_t n = unit / p.parts(), part = unit % p.parts();
  for (int64_t s = part * p.kPixels; s < p.Behind(part); ++s) {
    const int64_t element = (n * p.S + s) * p.C + at;
    RowReader<Wide, kBlock> g(work.grad_out.dtype, work.grad_out.At(element), size),
        x(work.x.dtype, work.x.At(element), size);
    Wide h[kBlock], d[kBlock];
    const auto normal = [](Wide v, Wide m, Wide r) { return (v - m) * r; };
    Apply(size, normal, h, x.Read(0, size), c.mean, c.rstd);
    const auto inner = [](Wide g, Wide h, Wide w, Wide b) {
      return Inner<Wide, kSilu>(g, h, w, b);
    };
    Apply(size, inner, d, g.Read(0, size), h, c.weight, c.bias);
    use(element, h, d);
  }
}
template <typename Wide, bool kSilu>
inline void SumsOfPart(const Work& work, int64_t unit) {
  const ChannelPlanes& p = work.planes;
  Wide* sums = reinterpret_cast<Wide*>(work.parts) + unit * 2 * p.C;
  ForBlocks(p.C, [&](int64_t at, int64_t size) {
    const ChannelBlock<Wide> c(work, unit / p.parts(), at, size);
    Wide *of_d = sums + at, *products = sums + p.C + at;
    for (int64_t i = 0; i < size; ++i) of_d[i] = products[i] = 0;
    ForPixels<Wide, kSilu>(work, unit, at, size, c, [&](int64_t, const Wide* h, const Wide* d) {
      Apply(size, [](Wide sum, Wide d) { return sum + d; }, of_d, of_d, d);
      const auto add = [](Wide sum, Wide d, Wide h) { return sum + d * h; };
      Apply(size, add, products, products, d, h);
    });
  });
}
template <typename Wide, bool kSilu>
inline void GradientOfPart(const Work& work, int64_t unit) {
  const ChannelPlanes& p = work.planes;
  const int64_t n = unit / p.parts();
  ForBlocks(p.C, [&](int64_t at, int64_t size) {
    const ChannelBlock<Wide> c(work, n, at, size);
    Wide a[kBlock], b[kBlock];
    for (int64_t i = 0; i < size; ++i) {
      const int64_t group = p.GroupOf(n, at + i);
      a[i] = static_cast<Wide>(work.means[2 * group]);
      b[i] = static_cast<Wide>(work.means[2 * group + 1]);
    }
    ForPixels<Wide, kSilu>(work, unit, at, size, c,
                           [&](int64_t element, const Wide* h, const Wide* d) {
                             RowWriter<Wide> to(work.grad_x.dtype, work.grad_x.At(element));
                             const auto gradient = [](Wide d, Wide h, Wide r, Wide w, Wide a,
                                                      Wide b) { return r * (w * d - a - h * b); };
                             Apply(size, gradient, to.Target(0), d, h, c.rstd, c.weight, a, b);
                             to.Write(0, size);
                           });
  });
}

// The parts' sums of one n joined, and the means of its groups.
template <typename Wide>
inline void JoinSums(const Work& work, int64_t n) {
  const ChannelPlanes& p = work.planes;
  double* sums = work.sums + n * 2 * p.C;
  if (p.last) {
    for (int64_t i = 0; i < 2 * p.C; ++i) sums[i] = 0;
    for (int64_t part = 0; part < p.parts(); ++part) {
      const Wide* of_part =
          reinterpret_cast<const Wide*>(work.parts) + (n * p.parts() + part) * 2 * p.C;
      for (int64_t c = 0; c < p.C; ++c)
        sums[2 * c] += of_part[c], sums[2 * c + 1] += of_part[p.C + c];
    }
  }
  for (int64_t g = 0; g < p.G; ++g) {
    double a = 0, b = 0;
    for (int64_t c = g * p.of_group(); c < (g + 1) * p.of_group(); ++c) {
      const double weight = OfChannel(work.weight, c, Wide{1});
      a += weight * sums[2 * c], b += weight * sums[2 * c + 1];
    }
    const double count = static_cast<double>(p.of_group() * p.S);
    work.means[2 * (n * p.G + g)] = a / count;
    work.means[2 * (n * p.G + g) + 1] = b / count;
  }
}
// Gradients of parameters, over all n in order.
template <typename Wide>
inline void WriteOfParameters(const Work& work, int64_t c) {
  double of_bias = 0, of_weight = 0;
  for (int64_t n = 0; n < work.planes.N; ++n) {
    of_bias += work.sums[2 * (n * work.planes.C + c)];
    of_weight += work.sums[2 * (n * work.planes.C + c) + 1];
  }
  const auto write = [&](const PlainRows& to, double value) {
    if (!to.data) return;
    RowWriter<Wide> one(to.dtype, to.At(c));
    *one.Target(0) = static_cast<Wide>(value);
    one.Write(0, 1);
  };
  write(work.grad_bias, of_bias);
  write(work.grad_weight, of_weight);
}

ANYOP_CPU_CLONES void Sums(const Work* work, int64_t begin, int64_t end) {
  ForUnits(work, begin, end, [&](auto wide, int64_t unit) {
    using Wide = decltype(wide);
    if (work->planes.last) {
      work->planes.silu ? SumsOfPart<Wide, true>(*work, unit)
                        : SumsOfPart<Wide, false>(*work, unit);
    } else {
      work->planes.silu ? SumsOfChannel<Wide, true>(*work, unit)
                        : SumsOfChannel<Wide, false>(*work, unit);
    }
  });
}
ANYOP_CPU_CLONES void Joins(const Work* work, int64_t begin, int64_t end) {
  ForUnits(work, begin, end,
           [&](auto wide, int64_t unit) { JoinSums<decltype(wide)>(*work, unit); });
}
ANYOP_CPU_CLONES void Gradients(const Work* work, int64_t begin, int64_t end) {
  ForUnits(work, begin, end, [&](auto wide, int64_t unit) {
    using Wide = decltype(wide);
    if (work->planes.last) {
      work->planes.silu ? GradientOfPart<Wide, true>(*work, unit)
                        : GradientOfPart<Wide, false>(*work, unit);
    } else {
      work->planes.silu ? GradientOfChannel<Wide, true>(*work, unit)
                        : GradientOfChannel<Wide, false>(*work, unit);
    }
  });
}
ANYOP_CPU_CLONES void OfParameters(const Work* work, int64_t begin, int64_t end) {
  ForUnits(work, begin, end,
           [&](auto wide, int64_t c) { WriteOfParameters<decltype(wide)>(*work, c); });
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
  const int64_t units = p.N * (last ? p.parts() : p.C), of_unit = last ? p.kPixels * p.C : p.S;
  const int64_t sums_bytes = p.N * 2 * (p.C + p.G) * int64_t{sizeof(double)};
  const int64_t parts_bytes = last ? units * 2 * p.C * (work.x.dtype == kAnyopFloat64 ? 8 : 4) : 0;
  auto* memory = static_cast<char*>(call->workspace(call, sums_bytes + parts_bytes));
  if (!memory && sums_bytes + parts_bytes)
    return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  work.sums = reinterpret_cast<double*>(memory);
  work.means = work.sums + p.N * 2 * p.C;
  work.parts = memory + sums_bytes;
  RunRows(call, &work, units, of_unit, Sums);
  RunRows(call, &work, p.N, (last ? p.parts() : 1) * p.C, Joins);
  if (work.grad_x.data) RunRows(call, &work, units, of_unit, Gradients);
  if (work.grad_weight.data || work.grad_bias.data) RunRows(call, &work, p.C, p.N, OfParameters);
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
