// SPDX-License-Identifier: Apache-2.0
// group_norm and group_norm_channels_last on CUDA. Channels first: a group is a row, read once; who
// holds it: anyop/cuda/row.h. Last: each thread goes along the pixels of a part for some channels
// and gives their means and squares, which a second kernel joins in order, and makes of them what
// each channel is normalised by; a third one normalises, the last parts first, which are most
// likely still in the second cache. Sums are float32
// (float64), distances from the group's, or the part's first, number: they do not cancel.
#include "anyop/ops/group_norm.h"
#include "anyop/ops/group_norm_channels_last.h"
#include "channel_planes_cuda.h"

namespace anyop::cuda {
namespace {

template <typename T, bool kAny>
struct GroupRow {
  using W = Wide<T>;
  RowsAt<kAny> x, out;
  OfChannels weight, bias;
  W *mean, *rstd;
  W eps, inverse_D;
  int64_t S, of_group, G;
  Divisor by_S;
  bool small, silu;  // columns below 2^31

  template <typename Row>
  __device__ void operator()(Row& row) const {
    const auto v = row.Read(x);
    const W center = row.Sum([](W sum, W v) { return sum + v; }, v) * inverse_D;
    const auto square = [=](W sum, W v) { return MulAdd(v - center, v - center, sum); };
    const W scale = ReciprocalRoot(MulAdd(row.Sum(square, row.Again(v)), inverse_D, eps));
    if (row.IsFirst()) mean[row.index()] = center, rstd[row.index()] = scale;
    const int64_t first = row.index() % G * of_group;
    row.EachPiece([&](int64_t d, const auto& piece) { Write(row, d, first, center, scale, piece); },
                  v);
  }

 private:
  __device__ int64_t ChannelOf(int64_t d) const {
    return small ? by_S.Divide(static_cast<uint32_t>(d)) : d / S;
  }
  template <typename Row, typename Elements>
  __device__ void Write(const Row& row, int64_t d, int64_t first, W center, W scale,
                        const Elements& v) const {
    const int64_t c = first + ChannelOf(d);  // pieces do not straddle channels
    const W times = scale * weight.At<W>(c, W(1)), plus = bias.At<W>(c, W(0));
    Piece<W, Row::kPer> made;
#pragma unroll
    for (int k = 0; k < Row::kPer; ++k) {
      const W z = MulAdd(v[k] - center, times, plus);
      made.at[k] = silu ? Silu(z) : z;
    }
    if constexpr (kAny) {
      WritePieceOf<T, Row::kPer>(out, out.At(row.index()), d, made);
    } else {
      WritePiece<Row::kPer>(reinterpret_cast<T*>(out.At(row.index())) + d, true, made);
    }
  }
};

template <typename T>
struct LastNorm {
  using W = Wide<T>;
  const T* x;
  T* out;
  OfChannels weight, bias;
  W *mean, *rstd, *moments;  // moments: of each n, part and channel the mean and the squares
  W* numbers;                // of each n the means, factors and summands of all channels
  W eps;
  bool silu, aligned;  // out to 16 bytes
  Parts parts;
};

template <typename T, int kPer>
__global__ void __launch_bounds__(kPartThreads) FindMoments(const __grid_constant__ LastNorm<T> p) {
  using W = Wide<T>;
  WaitForWork();
  LetNextStart();
  const Parts& at = p.parts;
  const int64_t c = at.Channel(), n = blockIdx.x / at.parts, part = blockIdx.x % at.parts;
  const int64_t first = at.First(part), behind = at.Behind(part);
  W sums[kPer] = {}, squares[kPer] = {};
  Piece<W, kPer> base = {};
  if (c < at.C) {
    const T* pixels = p.x + n * at.S * at.C + c;
    base = ReadPiece<kPer>(pixels + first * at.C, true);
#pragma unroll
    for (int k = 0; k < kPer; ++k) base.at[k] = base.at[k] - base.at[k] == 0 ? base.at[k] : W(0);
#pragma unroll 4
    for (int64_t s = first + at.row(); s < behind; s += at.rows) {
      const Piece<W, kPer> v = ReadPiece<kPer>(pixels + s * at.C, true);
#pragma unroll
      for (int k = 0; k < kPer; ++k) {
        const W far = v.at[k] - base.at[k];
        sums[k] += far;
        squares[k] = MulAdd(far, far, squares[k]);
      }
    }
  }
  AddRows<W, kPer>(at, sums, squares);
  if (at.row() > 0 || c >= at.C) return;
  const W count = static_cast<W>(behind - first);
  W* to = p.moments + 2 * ((n * at.parts + part) * at.C + c);
#pragma unroll
  for (int k = 0; k < kPer; ++k) {
    const W far = sums[k] / count, rest = squares[k] - far * sums[k];
    to[2 * k] = base.at[k] + far;
    to[2 * k + 1] = rest < 0 ? W(0) : rest;
  }
}

// A block for each n and group.
template <typename T>
__global__ void __launch_bounds__(kPartThreads) JoinMoments(const __grid_constant__ LastNorm<T> p) {
  using W = Wide<T>;
  __shared__ Partials<W> partials;
  WaitForWork();
  LetNextStart();
  RowTeam<W> team(kPartThreads, partials);
  const Parts& at = p.parts;
  const int64_t group = blockIdx.x, of_group = at.C / at.G, n = group / at.G;
  const int64_t first = group % at.G * of_group;  // channel
  const W* moments = p.moments + 2 * (n * at.parts * at.C + first);
  // Threads side by side have channels, rows of them parts.
  const int side = of_group < kPartThreads ? static_cast<int>(of_group) : kPartThreads;
  const int row = static_cast<int>(threadIdx.x) / side, rows = kPartThreads / side;
  const auto for_moments = [&](const auto& use) {
    if (row >= rows) return;
    for (int64_t c = static_cast<int>(threadIdx.x) % side; c < of_group; c += side)
#pragma unroll 4
      for (int64_t part = row; part < at.parts; part += rows) {
        const W* from = moments + 2 * (part * at.C + c);
        use(static_cast<W>(at.Behind(part) - at.First(part)), from[0], from[1]);
      }
  };
  const W inverse = 1 / static_cast<W>(of_group * at.S);
  W sum = 0, squares = 0;
  for_moments([&](W count, W mean, W) { sum = MulAdd(count, mean, sum); });
  const W mean = team.Total(sum) * inverse;
  for_moments([&](W count, W of_part, W rest) {
    const W far = of_part - mean;
    squares += MulAdd(count * far, far, rest);
  });
  squares = team.Total(squares);
  const W rstd = ReciprocalRoot(MulAdd(squares, inverse, p.eps));
  if (threadIdx.x == 0) p.mean[group] = mean, p.rstd[group] = rstd;
  W* numbers = p.numbers + 3 * n * at.C;
  for (int64_t c = first + threadIdx.x; c < first + of_group; c += kPartThreads) {
    numbers[c] = mean;
    numbers[at.C + c] = rstd * p.weight.template At<W>(c, W(1));
    numbers[2 * at.C + c] = p.bias.template At<W>(c, W(0));
  }
}

template <typename T, int kPer>
__global__ void __launch_bounds__(kPartThreads) Normalize(const __grid_constant__ LastNorm<T> p) {
  using W = Wide<T>;
  WaitForWork();
  LetNextStart();
  const Parts& at = p.parts;
  const int64_t c = at.Channel(), from_end = gridDim.x - 1 - blockIdx.x, n = from_end / at.parts,
                part = from_end % at.parts;
  if (c >= at.C) return;
  const ColumnsAt<W, false, false> numbers = {p.numbers + 3 * n * at.C, 0};
  const auto mean = ReadColumns<kPer, W>(numbers, c);
  const auto times = ReadColumns<kPer, W>(numbers, at.C + c);
  const auto plus = ReadColumns<kPer, W>(numbers, 2 * at.C + c);
  const int64_t begin = n * at.S * at.C + c, behind = at.Behind(part);
  const auto read = [&](int64_t s) { return ReadPiece<kPer>(p.x + begin + s * at.C, true); };
  const auto write = [&](int64_t s, const Piece<W, kPer>& v) {
    Piece<W, kPer> made;
#pragma unroll
    for (int k = 0; k < kPer; ++k) {
      const W z = MulAdd(v.at[k] - mean[k], times[k], plus[k]);
      made.at[k] = p.silu ? Silu(z) : z;
    }
    WritePiece<kPer>(p.out + begin + s * at.C, p.aligned, made);
  };
  ReadTwoAtOnce(at.First(part) + at.row(), behind, int64_t{at.rows}, read, write);
}

// Groups without elements.
template <typename W>
__global__ void WriteEmpty(W* mean, W* rstd, int64_t groups, W eps) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < groups;
       i += int64_t{gridDim.x} * blockDim.x)
    mean[i] = 0, rstd[i] = ReciprocalRoot(eps);
}
template <typename T, typename Args>
int32_t RunEmpty(const Args& args, AnyopCall* call) {
  using W = Wide<T>;
  const int64_t groups = args.N * args.groups;
  if (groups == 0) return kAnyopOk;
  const Launch launch{dim3(static_cast<unsigned>(std::min<int64_t>(CeilDiv(groups, 128), 4096))),
                      dim3(128)};
  return launch.Run(call, WriteEmpty<W>, static_cast<W*>(args.mean->data),
                    static_cast<W*>(args.rstd->data), groups, EpsilonOf<T>(args.eps));
}

template <typename T>
int32_t RunFirst(const GroupNormArgs& args, AnyopCall* call) {
  using W = Wide<T>;
  const int64_t S = args.numel_S, of_group = args.C / args.groups, D = of_group * S;
  const int64_t rows = args.N * args.groups;
  if (D == 0) return RunEmpty<T>(args, call);
  const AsRows x(args.x, rows, D), out(args.out, rows, D);
  RowsFit fit = FitRows<T>({rows, D}, {&x.tensor}, {&out.tensor});
  fit.vectors = fit.vectors && S % kPerVector<T> == 0;
  return RunFitted<T>(call, {rows, D}, fit, [&](auto of, auto any) {
    const bool small = D < INT64_C(0x7fffffff);
    return GroupRow<decltype(of), any>{PlaceRows<any>(&x.tensor),
                                       PlaceRows<any>(&out.tensor),
                                       OfChannels(args.weight),
                                       OfChannels(args.bias),
                                       static_cast<W*>(args.mean->data),
                                       static_cast<W*>(args.rstd->data),
                                       EpsilonOf<T>(args.eps),
                                       static_cast<W>(1.0 / static_cast<double>(D)),
                                       S,
                                       of_group,
                                       args.groups,
                                       small ? Divisor(S) : Divisor(),
                                       small,
                                       IsSilu(args.activation)};
  });
}

template <typename T>
int32_t RunLast(const GroupNormChannelsLastArgs& args, AnyopCall* call) {
  using W = Wide<T>;
  if (args.N * args.C * args.numel_S == 0) return RunEmpty<T>(args, call);
  const T* x = static_cast<const T*>(args.x->data);
  // How sums are made depends on what is read, not on where results go.
  return WithPieces<T>(args.C, IsAligned(x, 16), [&](auto per) {
    T* out = static_cast<T*>(args.out->data);
    const Parts parts(args.N, args.C, args.numel_S, args.groups, per);
    const int64_t bytes = 2 * args.N * parts.parts * args.C * int64_t{sizeof(W)};
    auto* moments = static_cast<W*>(call->workspace(call, bytes));
    auto* numbers =
        static_cast<W*>(call->workspace(call, 3 * args.N * args.C * int64_t{sizeof(W)}));
    if (!moments || !numbers)
      return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
    const LastNorm<T> p = {x,
                           out,
                           OfChannels(args.weight),
                           OfChannels(args.bias),
                           static_cast<W*>(args.mean->data),
                           static_cast<W*>(args.rstd->data),
                           moments,
                           numbers,
                           EpsilonOf<T>(args.eps),
                           IsSilu(args.activation),
                           IsAligned(out, 16),
                           parts};
    Launch launch = parts.LaunchFor(args.N);
    launch.overlaps = true;
    if (int32_t status = launch.Run(call, FindMoments<T, per>, p)) return status;
    const Launch join{dim3(static_cast<unsigned>(args.N * args.groups)), dim3(kPartThreads), 0,
                      true};
    if (int32_t status = join.Run(call, JoinMoments<T>, p)) return status;
    return launch.Run(call, Normalize<T, per>, p);
  });
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_group_norm_cuda(const GroupNormArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  return WithFloating(AnyopDtypeOf(args->x),
                      [&](auto zero) { return RunFirst<decltype(zero)>(*args, call); });
}
extern "C" int32_t anyop_group_norm_channels_last_cuda(const GroupNormChannelsLastArgs* args,
                                                       AnyopCall* call) {
  using namespace anyop::cuda;
  return WithFloating(AnyopDtypeOf(args->x),
                      [&](auto zero) { return RunLast<decltype(zero)>(*args, call); });
}
