// SPDX-License-Identifier: Apache-2.0
// Gradients of layer_norm and fused_add_layer_norm on the CPU: four rows of each tensor are read
// from memory once, summed and mapped in the cache, in float32 (float64 where a tensor is).
#include "anyop/ops/layer_norm_backward.h"

#include "anyop/cpu/columns.h"
#include "anyop/ops/fused_add_layer_norm_backward.h"

namespace anyop::cpu {
namespace {

// The tensors that may be absent are nullptr: a gradient that is 0, or one that is not wanted.
struct Work {
  const AnyopTensor *grad_out, *grad_sum, *x, *weight, *grad_x, *grad_weight, *grad_bias;
  double eps, weight_offset;
  int64_t D;
  AnyopDtype wide;
  const ColumnSums& sums;  // of grad_weight, then of grad_bias
};

// A block's sums around the mean of its own: squares of x, grad * factor, and that times x. One
// loop for the three, in two vectors of partial sums each.
template <typename Wide>
struct BlockSums {
  Wide squares, product, moment;

  BlockSums(int64_t n, Wide mean, Wide offset, const Wide* g, const Wide* w, const Wide* x) {
    constexpr int kLanes = 64 / sizeof(Wide);  // of the widest vector
    Wide s[2][kLanes] = {}, p[2][kLanes] = {}, m[2][kLanes] = {};
    const auto add = [=](int64_t i, Wide& squares, Wide& product, Wide& moment) {
      const Wide v = x[i] - mean, term = g[i] * (w[i] + offset);
      squares += v * v;
      product += term;
      moment += term * v;
    };
    int64_t i = 0;
    for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
#pragma omp simd
      for (int j = 0; j < kLanes; ++j) {
        add(i + j, s[0][j], p[0][j], m[0][j]);
        add(i + kLanes + j, s[1][j], p[1][j], m[1][j]);
      }
    }
    for (; i < n; ++i) add(i, s[0][i % kLanes], p[0][i % kLanes], m[0][i % kLanes]);
    squares = Joined(s);
    product = Joined(p);
    moment = Joined(m);
  }

 private:
  template <int N>
  static Wide Joined(Wide (&parts)[2][N]) {
    const auto sum = [](Wide a, Wide b) { return a + b; };
    Apply(N, sum, parts[0], parts[0], parts[1]);
    return JoinLanes<N>(parts[0], sum);
  }
};

// Small, as there are eight; the rows stay in the second cache.
template <typename Wide>
using Reader = RowReader<Wide, kBlock>;

// What a row's gradient is made of: scale * grad * factor - (normal * share + shift), with
// normal = (x - mean) * scale.
template <typename Wide>
struct Line {
  Wide mean, scale, shift, share;

  void Set(int64_t D, double eps, Wide offset, Reader<Wide>& in, Reader<Wide>& grad,
           RowReader<Wide>& weight) {
    Moments of_x;
    double product = 0, moment = 0;  // of grad * factor, and of that times (x - the mean so far)
    ForBlocks(D, [&](int64_t at, int64_t n) {
      const Wide *x = in.Read(at, n), *g = grad.Read(at, n), *w = weight.Read(at, n);
      const Wide own = MeanOfBlock(n, x);
      const BlockSums<Wide> of(n, own, offset, g, w, x);
      const double before = of_x.mean, sum = of.product;
      of_x.Join(at, n, own, of.squares);
      moment += of.moment + sum * (own - of_x.mean);
      moment += product * (before - of_x.mean);
      product += sum;
    });
    const double rstd = 1 / __builtin_sqrt((D > 0 ? of_x.squares / D : 0) + eps);
    mean = static_cast<Wide>(of_x.mean), scale = static_cast<Wide>(rstd);
    shift = static_cast<Wide>(product / D * rstd);
    share = static_cast<Wide>(moment / D * rstd * rstd);
  }
};

template <typename Wide>
struct Row {
  Line<Wide> line;
  const Wide *grad, *x;
  Wide* out;

  void Put(int64_t j, Wide factor, Wide& normal, Wide& bias) const {
    const Wide g = grad[j], own = (x[j] - line.mean) * line.scale;
    normal += g * own;
    bias += g;
    out[j] = g * line.scale * factor - (own * line.share + line.shift);
  }
};

// Some rows side by side: what they add to the columns is read and written once for all of them,
// and added row by row. Results that are not wanted go to `unused`.
template <int... row>
struct Group {
  static constexpr int kRows = sizeof...(row);
  static constexpr int64_t kStep = kBlock / 2;  // of all rows in the first cache

  // By value, so that all of it lies in registers.
  template <typename Wide, typename... Row>
  static void Step(int64_t n, Wide offset, const Wide* w, Wide* normals, Wide* biases,
                   const Row... of) {
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      const Wide factor = w[j] + offset;
      Wide normal = normals[j], bias = biases[j];
      (of.Put(j, factor, normal, bias), ...);
      normals[j] = normal;
      biases[j] = bias;
    }
  }

  template <typename Wide>
  static void Differentiate(const Work& work, int64_t first, RowReader<Wide>& weight) {
    const int64_t D = work.D;
    const Wide offset = static_cast<Wide>(work.weight_offset);
    const Rows x(work.x), grad_out(work.grad_out), grad_x(work.grad_x ? work.grad_x : work.x);
    Reader<Wide> in[] = {Reader<Wide>(x.dtype(), x[first + row], D)...};
    Reader<Wide> grad[] = {Reader<Wide>(grad_out.dtype(), grad_out[first + row], D)...};
    RowWriter<Wide> to[] = {RowWriter<Wide>(grad_x.dtype(), grad_x[first + row])...};
    Line<Wide> lines[kRows];
    for (int i = 0; i < kRows; ++i) lines[i].Set(D, work.eps, offset, in[i], grad[i], weight);
    const bool sums = work.grad_weight || work.grad_bias;
    Wide *normals = sums ? work.sums.At<Wide>(first) : nullptr, *biases = normals;
    if (work.grad_weight) biases = normals + D;
    alignas(64) Wide unused[3][kStep] = {};
    for (int64_t n, at = 0; at < D; at += n) {
      n = D - at < kStep ? D - at : kStep;
      Wide* out[] = {(static_cast<void>(row), unused[0])...};
      if (work.grad_x) ((out[row] = to[row].Target(at)), ...);
      for (int i = 0; i < kRows; ++i) {
        x.Fetch(first + kRows + i, at, n);
        grad_out.Fetch(first + kRows + i, at, n);
      }
      Step(n, offset, weight.Read(at, n), work.grad_weight ? normals + at : unused[1],
           work.grad_bias ? biases + at : unused[2],
           Row<Wide>{lines[row], grad[row].Read(at, n), in[row].Read(at, n), out[row]}...);
      if (work.grad_x) (Finish(work, first + row, at, n, out[row], to[row]), ...);
    }
  }

 private:
  template <typename Wide>
  static void Finish(const Work& work, int64_t at_row, int64_t at, int64_t n, Wide* out,
                     RowWriter<Wide>& to) {
    if (work.grad_sum) {
      const Rows grad_sum(work.grad_sum);
      Reader<Wide> more(grad_sum.dtype(), grad_sum[at_row], work.D);
      Apply(n, [](Wide a, Wide b) { return a + b; }, out, out, more.Read(at, n));
    }
    to.Write(at, n);
  }
};

// Without a gradient of the result: that of the sum, or 0.
template <typename Wide>
inline void Copy(const Work& work, int64_t begin, int64_t end) {
  if (!work.grad_x) return;
  const Rows grad_sum(work.grad_sum ? work.grad_sum : work.x), grad_x(work.grad_x);
  RowReader<Wide> zeros(nullptr, 0, work.D);
  for (int64_t row = begin; row < end; ++row) {
    RowReader<Wide> more(grad_sum.dtype(), grad_sum[row], work.grad_sum ? work.D : 0);
    RowWriter<Wide> to(grad_x.dtype(), grad_x[row]);
    MapRow(work.D, [](Wide v) { return v; }, to, work.grad_sum ? more : zeros);
  }
}

template <typename Wide>
inline void Differentiate(const Work& work, int64_t begin, int64_t end) {
  const bool sums = work.grad_weight || work.grad_bias;
  if (!work.grad_out) {
    for (int64_t row = begin; sums && row < end; ++row) work.sums.At<Wide>(row);
    return Copy<Wide>(work, begin, end);
  }
  RowReader<Wide> weight(work.weight, 1, work.D);
  using Four = Group<0, 1, 2, 3>;
  static_assert(Four::kRows == ColumnSums::kGroupRows);
  int64_t row = begin;  // of a group: the same rows side by side for any number of threads
  for (; row + Four::kRows <= end; row += Four::kRows) Four::Differentiate(work, row, weight);
  for (; row < end; ++row) Group<0>::Differentiate(work, row, weight);
}

ANYOP_CPU_CLONES void Run(const Work* work, int64_t begin, int64_t end) {
  WithFloat(work->wide, [&](auto wide) { Differentiate<decltype(wide)>(*work, begin, end); });
}

template <typename Args>
int32_t RunGradient(const Args* args, AnyopCall* call, const AnyopTensor* grad_sum,
                    const AnyopTensor* x) {
  const AnyopDtype wide = WidestOf(args->grad_out, grad_sum, x, args->weight);
  const int64_t wanted = (args->grad_weight ? 1 : 0) + (args->grad_bias ? 1 : 0);
  const ColumnSums sums(call, wide, args->rows, wanted * args->D);
  if (!sums.has_memory()) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  const Work work = {args->grad_out,  grad_sum,     x,
                     args->weight,    args->grad_x, args->grad_weight,
                     args->grad_bias, args->eps,    args->weight_offset,
                     args->D,         wide,         sums};
  sums.RunParts(call, &work, args->rows, args->D, Run);
  if (args->grad_weight) sums.Write(call, 0, args->grad_weight);
  if (args->grad_bias) sums.Write(call, args->grad_weight ? args->D : 0, args->grad_bias);
  return kAnyopOk;
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_layer_norm_backward_cpu(const LayerNormBackwardArgs* args,
                                                 AnyopCall* call) {
  return anyop::cpu::RunGradient(args, call, nullptr, args->x);
}
extern "C" int32_t anyop_fused_add_layer_norm_backward_cpu(
    const FusedAddLayerNormBackwardArgs* args, AnyopCall* call) {
  return anyop::cpu::RunGradient(args, call, args->grad_sum, args->sum);
}
