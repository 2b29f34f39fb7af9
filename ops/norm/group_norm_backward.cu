// SPDX-License-Identifier: Apache-2.0
// Gradients of group_norm and group_norm_channels_last on CUDA: the sums of each channel of each n,
// by rows or, channels last, by parts; then the means of each group, the gradients of the
// parameters, each in an order that depends on the shape alone; then the gradient of x. Both inputs
// are read twice. Sums are float32 (float64).
#include "anyop/ops/group_norm_backward.h"
#include "anyop/ops/group_norm_channels_last_backward.h"
#include "channel_planes_cuda.h"

namespace anyop::cuda {
namespace {

// What both orders of channels have.
template <typename W>
struct Problem {
  const W *mean, *rstd;
  OfChannels weight, bias;
  W *sums, *means;  // of each n, part and channel: of d, of d * h; of each n and group
  int64_t C, G, of_group, parts;
  W inverse_count;
  bool silu;
};

template <typename W>
struct Channel {
  W mean, rstd, weight, bias;

  Channel() = default;
  template <typename P>
  __device__ Channel(const P& p, int64_t n, int64_t c) {
    const int64_t group = n * p.G + c / p.of_group;
    mean = p.mean[group], rstd = p.rstd[group];
    weight = p.weight.template At<W>(c, W(1));
    bias = p.bias.template At<W>(c, W(0));
  }
  __device__ W Normal(W v) const { return (v - mean) * rstd; }
  __device__ W Inner(W g, W h, bool silu) const {
    return silu ? g * SiluSlope(MulAdd(h, weight, bias)) : g;
  }
  // a, b: the means of the group, times rstd.
  __device__ W Gradient(W g, W v, W a, W b, bool silu) const {
    const W h = Normal(v);
    return MulAdd(rstd * weight, Inner(g, h, silu), -MulAdd(h, b, a));
  }
};

// Channels first: rows of one n and channel.
template <typename T, bool kAny>
struct ChannelSums {
  using W = Wide<T>;
  static constexpr int kHeld = 2;
  RowsAt<kAny> grad_out, x;
  Problem<Wide<T>> p;
  int64_t rows;

  template <typename Row>
  __device__ void operator()(Row& row) const {
    const int64_t r = row.index() < rows ? row.index() : 0;
    const Channel<W> c(p, r / p.C, r % p.C);
    const bool silu = p.silu;
    const auto g = row.Read(grad_out), v = row.Read(x);
    W sum, product;
    row.TwoSums(
        &sum, &product, [=](W sum, W g, W v) { return sum + c.Inner(g, c.Normal(v), silu); },
        [=](W sum, W g, W v) { return MulAdd(c.Inner(g, c.Normal(v), silu), c.Normal(v), sum); }, g,
        v);
    if (row.IsFirst()) p.sums[2 * r] = sum, p.sums[2 * r + 1] = product;
  }
};
template <typename T, bool kAny>
struct ChannelGradient {
  using W = Wide<T>;
  static constexpr int kHeld = 2;
  RowsAt<kAny> grad_out, x, grad_x;
  Problem<Wide<T>> p;
  int64_t rows;

  template <typename Row>
  __device__ void operator()(Row& row) const {
    const int64_t r = row.index() < rows ? row.index() : 0, n = r / p.C;
    const Channel<W> c(p, n, r % p.C);
    const int64_t group = n * p.G + r % p.C / p.of_group;
    const W a = p.means[2 * group] * c.rstd, b = p.means[2 * group + 1] * c.rstd;
    const bool silu = p.silu;
    const auto g = row.Read(grad_out), v = row.Read(x);
    row.Write(grad_x, [=](W g, W v) { return c.Gradient(g, v, a, b, silu); }, g, v);
  }
};

// Channels last.
template <typename T>
struct LastGradient {
  const T *grad_out, *x;
  T* grad_x;
  bool aligned;  // grad_x to 16 bytes
  Problem<Wide<T>> p;
  Parts parts;
};
template <typename T, int kPer>
__global__ void __launch_bounds__(kPartThreads)
    FindSums(const __grid_constant__ LastGradient<T> q) {
  using W = Wide<T>;
  const Parts& at = q.parts;
  const int64_t c = at.Channel(), n = blockIdx.x / at.parts, part = blockIdx.x % at.parts;
  W sums[kPer] = {}, products[kPer] = {};
  if (c < at.C) {
    Channel<W> channels[kPer];
#pragma unroll
    for (int k = 0; k < kPer; ++k) channels[k] = Channel<W>(q.p, n, c + k);
    const int64_t begin = n * at.S * at.C + c;
#pragma unroll 2
    for (int64_t s = at.First(part) + at.row(); s < at.Behind(part); s += at.rows) {
      const Piece<W, kPer> g = ReadPiece<kPer>(q.grad_out + begin + s * at.C, true),
                           v = ReadPiece<kPer>(q.x + begin + s * at.C, true);
#pragma unroll
      for (int k = 0; k < kPer; ++k) {
        const W h = channels[k].Normal(v.at[k]), d = channels[k].Inner(g.at[k], h, q.p.silu);
        sums[k] += d;
        products[k] = MulAdd(d, h, products[k]);
      }
    }
  }
  AddRows<W, kPer>(at, sums, products);
  if (at.row() > 0 || c >= at.C) return;
  W* to = q.p.sums + 2 * ((n * at.parts + part) * at.C + c);
#pragma unroll
  for (int k = 0; k < kPer; ++k) to[2 * k] = sums[k], to[2 * k + 1] = products[k];
}
template <typename T, int kPer>
__global__ void __launch_bounds__(kPartThreads)
    WriteGradient(const __grid_constant__ LastGradient<T> q) {
  using W = Wide<T>;
  const Parts& at = q.parts;
  const int64_t c = at.Channel(), from_end = gridDim.x - 1 - blockIdx.x, n = from_end / at.parts,
                part = from_end % at.parts;
  if (c >= at.C) return;
  Channel<W> channels[kPer];
  W a[kPer], b[kPer];
#pragma unroll
  for (int k = 0; k < kPer; ++k) {
    channels[k] = Channel<W>(q.p, n, c + k);
    const int64_t group = at.GroupOf(n, c + k);
    a[k] = q.p.means[2 * group] * channels[k].rstd;
    b[k] = q.p.means[2 * group + 1] * channels[k].rstd;
  }
  const int64_t begin = n * at.S * at.C + c;
  for (int64_t s = at.First(part) + at.row(); s < at.Behind(part); s += at.rows) {
    const Piece<W, kPer> g = ReadPiece<kPer>(q.grad_out + begin + s * at.C, true),
                         v = ReadPiece<kPer>(q.x + begin + s * at.C, true);
    Piece<W, kPer> made;
#pragma unroll
    for (int k = 0; k < kPer; ++k)
      made.at[k] = channels[k].Gradient(g.at[k], v.at[k], a[k], b[k], q.p.silu);
    WritePiece<kPer>(q.grad_x + begin + s * at.C, q.aligned, made);
  }
}

// A block for each n and group.
template <typename W>
__global__ void __launch_bounds__(kPartThreads) FindMeans(const __grid_constant__ Problem<W> p) {
  __shared__ Partials<W> partials;
  RowTeam<W> team(kPartThreads, partials);
  const int64_t group = blockIdx.x, n = group / p.G, begin = group % p.G * p.of_group;
  W sum = 0, product = 0;
  for (int64_t i = threadIdx.x; i < p.parts * p.of_group; i += kPartThreads) {
    const int64_t c = begin + i % p.of_group;
    const W* from = p.sums + 2 * ((n * p.parts + i / p.of_group) * p.C + c);
    const W weight = p.weight.template At<W>(c, W(1));
    sum = MulAdd(weight, from[0], sum);
    product = MulAdd(weight, from[1], product);
  }
  team.Totals(sum, product);
  if (threadIdx.x) return;
  p.means[2 * group] = sum * p.inverse_count;
  p.means[2 * group + 1] = product * p.inverse_count;
}

// Gradients of parameters: 32 channels of a block, 16 threads for each.
struct OfParameters {
  char *grad_weight, *grad_bias;  // NULL: not wanted
  AnyopDtype kind;
  int64_t N;
};
template <typename W>
__global__ void __launch_bounds__(512)
    AddParameters(const __grid_constant__ Problem<W> p, const __grid_constant__ OfParameters to) {
  __shared__ W memory[2][16][33];
  const int x = threadIdx.x % 32, y = threadIdx.x / 32;
  const int64_t c = int64_t{blockIdx.x} * 32 + x;
  W sum = 0, product = 0;
  if (c < p.C) {
#pragma unroll 4
    for (int64_t i = y; i < to.N * p.parts; i += 16) {
      sum += p.sums[2 * (i * p.C + c)];
      product += p.sums[2 * (i * p.C + c) + 1];
    }
  }
  memory[0][y][x] = sum, memory[1][y][x] = product;
  __syncthreads();
  if (y > 0 || c >= p.C) return;
  for (int i = 1; i < 16; ++i) sum += memory[0][i][x], product += memory[1][i][x];
  if (to.grad_bias) WriteFloating<W>(to.grad_bias, c, to.kind, sum);
  if (to.grad_weight) WriteFloating<W>(to.grad_weight, c, to.kind, product);
}

template <typename W, typename Args>
Problem<W> ProblemOf(const Args& args, int64_t parts) {
  const int64_t of_group = args.C / args.groups;
  return {static_cast<const W*>(args.mean->data),
          static_cast<const W*>(args.rstd->data),
          OfChannels(args.weight),
          OfChannels(args.bias),
          nullptr,
          nullptr,
          args.C,
          args.groups,
          of_group,
          parts,
          static_cast<W>(1.0 / static_cast<double>(std::max<int64_t>(of_group * args.numel_S, 1))),
          IsSilu(args.activation)};
}
template <typename W>
int32_t TakeMemory(AnyopCall* call, int64_t N, Problem<W>* p) {
  const int64_t sums = 2 * N * p->parts * p->C, means = 2 * N * p->G;
  p->sums = static_cast<W*>(call->workspace(call, (sums + means) * int64_t{sizeof(W)}));
  if (!p->sums) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  p->means = p->sums + sums;
  return kAnyopOk;
}
// What follows the sums of channels, but for the gradient of x.
template <typename W, typename Args>
int32_t RunJoins(const Args& args, AnyopCall* call, const Problem<W>& p) {
  const Launch groups{dim3(static_cast<unsigned>(args.N * args.groups)), dim3(kPartThreads)};
  if (args.grad_x) {
    if (int32_t status = groups.Run(call, FindMeans<W>, p)) return status;
  }
  if (!args.grad_weight && !args.grad_bias) return kAnyopOk;
  const AnyopTensor* one = args.grad_weight ? args.grad_weight : args.grad_bias;
  const auto data = [](const AnyopTensor* t) { return t ? static_cast<char*>(t->data) : nullptr; };
  const OfParameters to = {data(args.grad_weight), data(args.grad_bias), AnyopDtypeOf(one), args.N};
  const Launch channels{dim3(static_cast<unsigned>(CeilDiv(args.C, 32))), dim3(512)};
  return channels.Run(call, AddParameters<W>, p, to);
}
// Without elements the gradients of parameters are 0.
template <typename Args>
int32_t RunEmpty(const Args& args, AnyopCall* call) {
  const AnyopTensor* const grads[] = {args.grad_weight, args.grad_bias};
  for (const AnyopTensor* grad : grads) {
    if (!grad || args.C == 0) continue;
    const auto bytes = static_cast<size_t>(args.C * (grad->dtype_bits / 8));
    if (int32_t status =
            Check(call, cudaMemsetAsync(grad->data, 0, bytes, StreamOf(call)), "clearing"))
      return status;
  }
  return kAnyopOk;
}

template <typename T>
int32_t RunFirst(const GroupNormBackwardArgs& args, AnyopCall* call) {
  const int64_t S = args.numel_S, rows = args.N * args.C;
  Problem<Wide<T>> p = ProblemOf<Wide<T>>(args, 1);
  if (int32_t status = TakeMemory(call, args.N, &p)) return status;
  const AsRows grad_out(args.grad_out, rows, S), x(args.x, rows, S), grad_x(args.grad_x, rows, S);
  int32_t status =
      RunRows<T>(call, {rows, S}, {&grad_out.tensor, &x.tensor}, {nullptr}, [&](auto of, auto any) {
        using E = decltype(of);
        return ChannelSums<E, any>{PlaceRows<any>(&grad_out.tensor), PlaceRows<any>(&x.tensor), p,
                                   rows};
      });
  if (!status) status = RunJoins(args, call, p);
  if (status || !args.grad_x) return status;
  return RunRows<T>(
      call, {rows, S}, {&grad_out.tensor, &x.tensor}, {&grad_x.tensor}, [&](auto of, auto any) {
        using E = decltype(of);
        return ChannelGradient<E, any>{PlaceRows<any>(&grad_out.tensor), PlaceRows<any>(&x.tensor),
                                       PlaceRows<any>(&grad_x.tensor), p, rows};
      });
}
template <typename T>
int32_t RunLast(const GroupNormChannelsLastBackwardArgs& args, AnyopCall* call) {
  const T *grad_out = static_cast<const T*>(args.grad_out->data),
          *x = static_cast<const T*>(args.x->data);
  return WithPieces<T>(args.C, IsAligned(grad_out, 16) && IsAligned(x, 16), [&](auto per) {
    const Parts parts(args.N, args.C, args.numel_S, args.groups, per);
    Problem<Wide<T>> p = ProblemOf<Wide<T>>(args, parts.parts);
    if (int32_t status = TakeMemory(call, args.N, &p)) return status;
    T* grad_x = args.grad_x ? static_cast<T*>(args.grad_x->data) : nullptr;
    const LastGradient<T> q = {grad_out, x, grad_x, IsAligned(grad_x, 16), p, parts};
    int32_t status = parts.LaunchFor(args.N).Run(call, FindSums<T, per>, q);
    if (!status) status = RunJoins(args, call, p);
    if (status || !grad_x) return status;
    return parts.LaunchFor(args.N).Run(call, WriteGradient<T, per>, q);
  });
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_group_norm_backward_cuda(const GroupNormBackwardArgs* args,
                                                  AnyopCall* call) {
  using namespace anyop::cuda;
  if (args->N * args->C * args->numel_S == 0) return RunEmpty(*args, call);
  return WithFloating(AnyopDtypeOf(args->x),
                      [&](auto zero) { return RunFirst<decltype(zero)>(*args, call); });
}
extern "C" int32_t anyop_group_norm_channels_last_backward_cuda(
    const GroupNormChannelsLastBackwardArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  if (args->N * args->C * args->numel_S == 0) return RunEmpty(*args, call);
  return WithFloating(AnyopDtypeOf(args->x),
                      [&](auto zero) { return RunLast<decltype(zero)>(*args, call); });
}
