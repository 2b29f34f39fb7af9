// SPDX-License-Identifier: Apache-2.0
// Gradients of attention, a block of queries by all keys that one of them may see at a time.
//
// A task is one group of heads of one batch: a thread goes over its queries, recomputes their
// weights, and adds up the gradients of the group's keys and values in its lane of the workspace,
// in the same order for any number of threads. Five products of matrices a block: scores,
// gradients of the weights, and the three results. All is float32 for float16 and bfloat16 (rounded
// once, at the end), else of q's type; bfloat16 by pairs (paired_gradient.h) where the CPU has
// them. No more than kScores scores exist for each thread, but
// those of kLeastRows queries. lse is float32: float64 divides weights by their sum, where that is
// 1 but for the rounding of lse.
#include "anyop/ops/attention_backward.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "../linear/convert.h"
#include "../linear/lanes.h"
#include "../linear/multiply.h"
#include "anyop/ops/attention_varlen_backward.h"
#include "attention_packed.h"
#include "paired_gradient.h"
#include "softmax_block.h"
#include "softmax_gradient.h"

namespace anyop {
namespace {

constexpr int64_t kScores = 65536;
constexpr int64_t kLeastRows = 8, kMostRows = 128;
constexpr int64_t kPairedFrom = 32;      // queries of a group that are worth panels of its keys
constexpr int64_t kTooMany = INT64_MAX;  // bytes

template <typename T>
class AttentionGradient {
 public:
  AttentionGradient(const AttentionBackwardArgs& args, const Blas* blas)
      : args_(args),
        blas_(blas),
        group_(args.H / args.G),
        rows_(std::min(args.S, std::clamp(kScores / args.T, kLeastRows, kMostRows))),
        window_(WindowOf(args)),
        cuts_(window_.Cuts(args.S)),
        paired_(AnyopDtypeOf(args.q) == kAnyopBFloat16 && args.D > 0 && args.E > 0 &&
                group_ * args.S >= kPairedFrom && HasBF16Dots()),
        form_{static_cast<T>(ScaleOf(args)), static_cast<T>(args.softcap)} {}

  // Of the memory that Run needs. Keys without features may be any number: more than these would
  // overflow.
  int64_t CountBytes() {
    if (args_.T >= int64_t{1} << 40) return kTooMany;
    int64_t size = 0;
    LaneAt(nullptr, &size);
    return CountLanes(args_.B * args_.G) * size * static_cast<int64_t>(sizeof(T));
  }

  void Run(AnyopCall* call, void* memory) {
    const int64_t tasks = args_.B * args_.G;
    int64_t lane_size = 0;
    LaneAt(nullptr, &lane_size);
    ForTasks(call, tasks, CountLanes(tasks), [&](int64_t lane, int64_t task) {
      int64_t size;
      RunTask(task / args_.G, task % args_.G,
              LaneAt(static_cast<T*>(memory) + lane * lane_size, &size));
    });
  }

 private:
  // q, grad, grad_q: of a block of queries; weights, slopes: rows by keys; the others: of all keys.
  struct Lane {
    T *q, *grad, *out, *grad_q, *weights, *slopes, *caps, *bias, *k, *v, *clean, *grad_k, *grad_v;
    uint16_t* pairs;
  };

  // Divides memory, which may be nullptr to learn how much is needed.
  Lane LaneAt(T* memory, int64_t* size) const {
    int64_t used = 0;
    const auto take = [&](int64_t count) {
      T* at = memory ? memory + used : nullptr;
      used += (count + 15) / 16 * 16;
      return at;
    };
    const int64_t T_ = args_.T, D = args_.D, E = args_.E;
    const int64_t scores = rows_ * T_;
    const Lane lane = {
        take(rows_ * D),
        take(rows_ * E),
        take(E),
        take(rows_ * D),
        take(scores),
        take(scores),
        take(args_.softcap > 0 ? scores : 0),
        take(T_),
        take(paired_ ? 0 : T_ * D),
        take(paired_ ? 0 : T_ * E),
        take(cuts_ && !paired_ ? T_ * D : 0),
        take(T_ * D),
        take(T_ * E),
        reinterpret_cast<uint16_t*>(take(paired_ ? PairsAt(nullptr).CountElements() / 2 : 0))};
    *size = used;
    return lane;
  }

  PairedGradient PairsAt(uint16_t* memory) const {
    return PairedGradient({rows_, args_.T, args_.D, args_.E}, memory);
  }

  // Rows of one head, where they lie when the BLAS can read them there.
  BlasView<T> Read(const AnyopTensor& x, int64_t b, int64_t h, int64_t first, int64_t count,
                   T* scratch) const {
    const AnyopDtype dtype = AnyopDtypeOf(&x);
    const int64_t length = x.shape[3], step = x.strides[2];
    const int64_t at = b * x.strides[0] + h * x.strides[1] + first * step;
    if (SizeOf(dtype) == sizeof(T) && step >= length)
      return {static_cast<const T*>(x.data) + at, false, step};
    for (int64_t i = 0; i < count; ++i)
      Widen(dtype, x.data, at + i * step, 1, length, scratch + i * length);
    return {scratch, false, length};
  }

  // Rows of one head of a result.
  static void Write(const T* from, const AnyopTensor& to, int64_t b, int64_t h, int64_t first,
                    int64_t count) {
    const int64_t length = to.shape[3], step = to.strides[2];
    const int64_t at = b * to.strides[0] + h * to.strides[1] + first * step;
    const AnyopDtype dtype = AnyopDtypeOf(&to);
    if (step == length) return Narrow(from, count * length, dtype, to.data, at);
    for (int64_t i = 0; i < count; ++i)
      Narrow(from + i * length, length, dtype, to.data, at + i * step);
  }

  // Keys and values of a group; clean: keys without what is not finite, for products with weights
  // of 0.
  struct Group {
    BlasView<T> k, v, clean;
  };

  void RunTask(int64_t b, int64_t g, const Lane& lane) const {
    Group group = {};
    if (paired_) {
      PairsAt(lane.pairs).SetGroup(PairsOf(*args_.k, b, g, 0), PairsOf(*args_.v, b, g, 0), cuts_);
    } else {
      group.k = Read(*args_.k, b, g, 0, args_.T, lane.k);
      group.v = Read(*args_.v, b, g, 0, args_.T, lane.v);
      group.clean = cuts_ ? Clean(group.k, lane.clean) : group.k;
    }
    std::fill(lane.grad_k, lane.grad_k + args_.T * args_.D, T(0));
    std::fill(lane.grad_v, lane.grad_v + args_.T * args_.E, T(0));
    for (int64_t h = g * group_; h < (g + 1) * group_; ++h) {
      for (int64_t s = 0; s < args_.S; s += rows_) {
        const int64_t rows = std::min(rows_, args_.S - s), seen = window_.First(s);
        const int64_t first = paired_ ? seen / kPanelColumns * kPanelColumns : seen;
        const int64_t keys = std::max<int64_t>(window_.End(s + rows - 1) - first, 0);
        const Block block = {b, h, s, rows, first, keys};
        paired_ ? RunPaired(block, lane) : RunRows(block, group, lane);
      }
    }
    if (args_.grad_k) Write(lane.grad_k, *args_.grad_k, b, g, 0, args_.T);
    if (args_.grad_v) Write(lane.grad_v, *args_.grad_v, b, g, 0, args_.T);
  }

  // What is not finite shows by the weights of the queries that see it.
  BlasView<T> Clean(const BlasView<T>& k, T* clean) const {
    bool finite = true;
    for (int64_t t = 0; t < args_.T; ++t) finite &= AllFinite(k.At(t, 0), args_.D);
    if (finite) return k;
    for (int64_t t = 0; t < args_.T; ++t) {
      for (int64_t d = 0; d < args_.D; ++d)
        clean[t * args_.D + d] = std::isfinite(*k.At(t, d)) ? *k.At(t, d) : T(0);
    }
    return {clean, false, args_.D};
  }

  // Queries s to s + rows of one head, keys first to first + keys.
  struct Block {
    int64_t b, h, s, rows, first, keys;
    int64_t Of(const AnyopTensor& x, int64_t row) const {
      return b * x.strides[0] + h * x.strides[1] + (s + row) * x.strides[2];
    }
  };

  void RunRows(const Block& block, const Group& group, const Lane& lane) const {
    const int64_t rows = block.rows, keys = block.keys, D = args_.D, E = args_.E;
    const BlasView<T> q = Read(*args_.q, block.b, block.h, block.s, rows, lane.q);
    const BlasView<T> grad = Read(*args_.grad_out, block.b, block.h, block.s, rows, lane.grad);
    Product({rows, keys, D}, q, Turned(group.k.Part(block.first, 0)), 0, lane.weights, keys);
    for (int64_t row = 0; row < rows; ++row) SetWeights(block, row, lane);
    const BlasView<T> weights = {lane.weights, false, keys};
    if (args_.grad_v)
      Product({keys, E, rows}, Turned(weights), grad, 1, lane.grad_v + block.first * E, E);
    if (!args_.grad_q && !args_.grad_k) return;
    Product({rows, keys, E}, grad, Turned(group.v.Part(block.first, 0)), 0, lane.slopes, keys);
    for (int64_t row = 0; row < rows; ++row) SetSlopes(block, row, grad, lane);
    const BlasView<T> slopes = {lane.slopes, false, keys};
    if (args_.grad_k)
      Product({keys, D, rows}, Turned(slopes), q, 1, lane.grad_k + block.first * D, D);
    if (!args_.grad_q) return;
    Product({rows, D, keys}, slopes, group.clean.Part(block.first, 0), 0, lane.grad_q, D);
    Write(lane.grad_q, *args_.grad_q, block.b, block.h, block.s, rows);
  }

  static BFloat16Rows PairsOf(const AnyopTensor& x, int64_t b, int64_t h, int64_t row) {
    return {static_cast<const uint16_t*>(x.data) + b * x.strides[0] + h * x.strides[1] +
                row * x.strides[2],
            x.strides[2]};
  }

  // The same by pairs of bfloat16; keys from a whole panel on.
  void RunPaired(const Block& block, const Lane& lane) const {
    if constexpr (sizeof(T) == sizeof(float)) {
      const PairedGradient pairs = PairsAt(lane.pairs);
      const PairedGradient::Block at = {block.rows, block.first, block.keys};
      const auto q = PairsOf(*args_.q, block.b, block.h, block.s);
      const auto grad = PairsOf(*args_.grad_out, block.b, block.h, block.s);
      const BlasView<T> wide =
          Read(*args_.grad_out, block.b, block.h, block.s, block.rows, lane.grad);
      pairs.SetScores(q, at, lane.weights);
      for (int64_t row = 0; row < block.rows; ++row) SetWeights(block, row, lane);
      if (args_.grad_v) {
        pairs.Split(lane.weights, at);
        pairs.AddToKeys(grad, args_.E, at, lane.grad_v);
      }
      if (!args_.grad_q && !args_.grad_k) return;
      pairs.SetWeightGradients(grad, at, lane.slopes);
      for (int64_t row = 0; row < block.rows; ++row) SetSlopes(block, row, wide, lane);
      pairs.Split(lane.slopes, at);
      if (args_.grad_k) pairs.AddToKeys(q, args_.D, at, lane.grad_k);
      if (!args_.grad_q) return;
      pairs.SetQueryGradients(at, lane.grad_q);
      Write(lane.grad_q, *args_.grad_q, block.b, block.h, block.s, block.rows);
    }
  }

  static BlasView<T> Turned(const BlasView<T>& x) { return {x.data, !x.trans, x.ld}; }

  // c = a b + beta c, also where nothing is added up.
  void Product(const Cut& size, const BlasView<T>& a, const BlasView<T>& b, T beta, T* c,
               int64_t ldc) const {
    if (size.M == 0 || size.N == 0) return;
    if (size.K > 0) return Multiply<T>(*blas_, size, a, b, beta, c, ldc);
    if (beta == 0) std::fill(c, c + size.M * ldc, T(0));
  }

  // The keys of the block that a row may see: from, and behind the last.
  struct Seen {
    int64_t from, end;
  };
  Seen SeenBy(const Block& block, int64_t row) const {
    const int64_t from =
        std::clamp<int64_t>(window_.First(block.s + row) - block.first, 0, block.keys);
    return {from, std::clamp<int64_t>(window_.End(block.s + row) - block.first, from, block.keys)};
  }

  // Scores of one row to weights.
  void SetWeights(const Block& block, int64_t row, const Lane& lane) const {
    const auto [from, end] = SeenBy(block, row);
    const int64_t n = end - from, at = row * block.keys + from;
    const bool biased = args_.mask || args_.alibi_slopes;
    if (biased) SetBias(block, row, block.first + from, n, lane.bias);
    T* weights = lane.weights + at;
    WeightsOf(weights, n, form_, biased ? lane.bias : nullptr, LseOf(block, row),
              args_.softcap > 0 ? lane.caps + at : nullptr);
    if constexpr (sizeof(T) == 8) Normalize(block, row, n, weights);
    std::fill(lane.weights + row * block.keys, weights, T(0));
    std::fill(weights + n, lane.weights + (row + 1) * block.keys, T(0));
  }

  void SetBias(const Block& block, int64_t row, int64_t t, int64_t n, T* bias) const {
    if (const AnyopTensor* mask = args_.mask) {
      const int64_t step = mask->strides[3], at = block.Of(*mask, row) + t * step;
      if (mask->dtype_bits == 8) {
        MaskToBias(static_cast<const uint8_t*>(mask->data) + at, step, n, bias);
      } else {
        Widen(AnyopDtypeOf(mask), mask->data, at, step, n, bias);
      }
    } else {
      std::fill(bias, bias + n, T(0));
    }
    if (!args_.alibi_slopes) return;
    const T slope = static_cast<const float*>(args_.alibi_slopes->data)[block.h];
    const int64_t place = block.s + row + window_.offset - t;
    for (int64_t i = 0; i < n; ++i) bias[i] -= slope * static_cast<T>(std::abs(place - i));
  }

  void Normalize(const Block& block, int64_t row, int64_t n, T* weights) const {
    const T lse = LseOf(block, row);
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += weights[i];
    if (args_.sinks) sum += std::exp(static_cast<const float*>(args_.sinks->data)[block.h] - lse);
    if (std::abs(sum - 1) < 0x1p-22 * (1 + std::abs(lse))) Scale(1 / sum, n, weights);
  }

  // Gradients of one row's weights to those of its scores before they were scaled.
  void SetSlopes(const Block& block, int64_t row, const BlasView<T>& grad, const Lane& lane) const {
    const auto [from, end] = SeenBy(block, row);
    const int64_t at = row * block.keys + from, n = end - from;
    Widen(AnyopDtypeOf(args_.out), args_.out->data, block.Of(*args_.out, row), 1, args_.E,
          lane.out);
    double delta = DotOf(lane.out, grad.At(row, 0), args_.E);
    if (args_.grad_lse) delta -= Of(*args_.grad_lse, block, row);
    SlopesOf(lane.weights + at, n, form_, args_.softcap > 0 ? lane.caps + at : nullptr,
             static_cast<T>(delta), lane.slopes + at);
    std::fill(lane.slopes + row * block.keys, lane.slopes + at, T(0));
    std::fill(lane.slopes + at + n, lane.slopes + (row + 1) * block.keys, T(0));
  }

  static float Of(const AnyopTensor& x, const Block& block, int64_t row) {
    return static_cast<const float*>(x.data)[block.Of(x, row)];
  }
  // Nothing was seen: all weights are 0, whatever is subtracted.
  T LseOf(const Block& block, int64_t row) const {
    const T lse = Of(*args_.lse, block, row);
    return lse == -std::numeric_limits<T>::infinity() ? T(0) : lse;
  }

  const AttentionBackwardArgs& args_;
  const Blas* blas_;
  int64_t group_, rows_;
  KeyWindow window_;
  bool cuts_;    // a query does not see every key
  bool paired_;  // products by pairs of bfloat16
  ScoreForm<T> form_;
};

// Each by one thread, in the order of its queries.
template <typename T>
void SetSinkGradients(const AttentionBackwardArgs& args, AnyopCall* call) {
  auto* grad_sinks = static_cast<float*>(args.grad_sinks->data);
  ParallelFor(call, args.H, 1, [&](int64_t begin, int64_t end) {
    std::vector<T> rows(2 * static_cast<size_t>(args.E) + 1);
    T* out = rows.data();
    T* grad = out + args.E;
    for (int64_t h = begin; h < end; ++h) {
      const float sink = static_cast<const float*>(args.sinks->data)[h];
      double sum = 0;
      for (int64_t b = 0; b < args.B; ++b) {
        for (int64_t s = 0; s < args.S; ++s) {
          const auto place = [&](const AnyopTensor& x) {
            return b * x.strides[0] + h * x.strides[1] + s * x.strides[2];
          };
          const auto read = [&](const AnyopTensor& x, T* to) {
            Widen(AnyopDtypeOf(&x), x.data, place(x), 1, args.E, to);
          };
          const auto number = [&](const AnyopTensor& x) {
            return static_cast<const float*>(x.data)[place(x)];
          };
          read(*args.out, out);
          read(*args.grad_out, grad);
          double delta = DotOf(out, grad, args.E);
          if (args.grad_lse) delta -= number(*args.grad_lse);
          const float lse = number(*args.lse);
          sum -=
              std::exp(static_cast<double>(sink) - (std::isinf(lse) && lse < 0 ? 0 : lse)) * delta;
        }
      }
      grad_sinks[h] = static_cast<float>(sum);
    }
  });
}

void FillWithZeros(const AnyopTensor* tensor) {
  if (!tensor) return;
  int64_t bytes = tensor->dtype_bits / 8;
  for (int32_t d = 0; d < tensor->ndim; ++d) bytes *= tensor->shape[d];
  auto* data = static_cast<char*>(tensor->data);
  std::fill(data, data + bytes, char{0});
}

void DifferentiateSinks(const AttentionBackwardArgs& args, AnyopCall* call) {
  if (!args.grad_sinks || !args.sinks) return FillWithZeros(args.grad_sinks);
  args.q->dtype_bits == 64 ? SetSinkGradients<double>(args, call)
                           : SetSinkGradients<float>(args, call);
}

// visit_all(visit) gives one problem after the other.
template <typename T, typename VisitAll>
int32_t RunAll(const VisitAll& visit_all, const Blas* blas, AnyopCall* call) {
  int64_t bytes = 0;
  visit_all([&](const AttentionBackwardArgs& args) {
    bytes = std::max(bytes, AttentionGradient<T>(args, blas).CountBytes());
  });
  void* memory = bytes < kTooMany ? call->workspace(call, bytes) : nullptr;
  if (!memory) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  visit_all([&](const AttentionBackwardArgs& args) {
    AttentionGradient<T>(args, blas).Run(call, memory);
  });
  return kAnyopOk;
}

template <typename VisitAll>
int32_t RunAll(bool is_double, const VisitAll& visit_all, AnyopCall* call) {
  const Blas* blas = nullptr;
  if (const int32_t status = GetBlas(call, &blas)) return status;
  return is_double ? RunAll<double>(visit_all, blas, call) : RunAll<float>(visit_all, blas, call);
}

int32_t Differentiate(const AttentionBackwardArgs& args, AnyopCall* call) {
  DifferentiateSinks(args, call);
  if (args.B == 0 || args.H == 0 || args.S == 0 || args.T == 0) {
    for (const AnyopTensor* result : {args.grad_q, args.grad_k, args.grad_v}) FillWithZeros(result);
    return kAnyopOk;
  }
  return RunAll(args.q->dtype_bits == 64, [&](const auto& visit) { visit(args); }, call);
}

// One sequence of packed ones as a dense problem.
class SequenceGradient {
 public:
  SequenceGradient(const AttentionVarlenBackwardArgs& args, const Sequence& at)
      : grad_out_(args.grad_out, at.q, at.q_end),
        q_(args.q, at.q, at.q_end),
        k_(args.k, at.k, at.k_end),
        v_(args.v, at.k, at.k_end),
        out_(args.out, at.q, at.q_end),
        lse_(args.lse, at.q, at.q_end),
        grad_lse_(args.grad_lse, at.q, at.q_end),
        grad_q_(args.grad_q, at.q, at.q_end),
        grad_k_(args.grad_k, at.k, at.k_end),
        grad_v_(args.grad_v, at.k, at.k_end) {
    args_.grad_out = grad_out_.get(), args_.q = q_.get(), args_.k = k_.get(), args_.v = v_.get();
    args_.out = out_.get(), args_.lse = lse_.get(), args_.grad_lse = grad_lse_.get();
    args_.grad_q = grad_q_.get(), args_.grad_k = grad_k_.get(), args_.grad_v = grad_v_.get();
    args_.sinks = args.sinks, args_.alibi_slopes = args.alibi_slopes;
    args_.grad_sinks = args.grad_sinks;
    args_.scale = args.scale, args_.causal = args.causal, args_.softcap = args.softcap;
    args_.window_left = args.window_left, args_.window_right = args.window_right;
    args_.B = 1, args_.H = args.H, args_.G = args.G, args_.D = args.D, args_.E = args.E;
    args_.S = at.S(), args_.T = at.T(), args_.offset = at.T() - at.S();
  }
  SequenceGradient(const SequenceGradient&) = delete;

  const AttentionBackwardArgs& args() const { return args_; }

 private:
  HeadsFirst grad_out_, q_, k_, v_, out_, lse_, grad_lse_, grad_q_, grad_k_, grad_v_;
  AttentionBackwardArgs args_ = {};
};

int32_t DifferentiatePacked(const AttentionVarlenBackwardArgs& args, AnyopCall* call) {
  // Sums over queries do not ask for sequences.
  DifferentiateSinks(SequenceGradient(args, {0, args.S, 0, args.T}).args(), call);
  for (const AnyopTensor* result : {args.grad_q, args.grad_k, args.grad_v}) FillWithZeros(result);
  if (args.H == 0 || args.S == 0 || args.T == 0) return kAnyopOk;
  const auto visit_all = [&](const auto& visit) {
    ForSequences(args, [&](const Sequence& at) {
      if (at.T() > 0) visit(SequenceGradient(args, at).args());
    });
  };
  return RunAll(args.q->dtype_bits == 64, visit_all, call);
}

}  // namespace
}  // namespace anyop

extern "C" int32_t anyop_attention_backward_cpu(const AttentionBackwardArgs* args,
                                                AnyopCall* call) {
  if (const int32_t status = anyop::CheckSoftcap(call, args->softcap)) return status;
  return anyop::Differentiate(*args, call);
}
extern "C" int32_t anyop_attention_varlen_backward_cpu(const AttentionVarlenBackwardArgs* args,
                                                       AnyopCall* call) {
  if (const int32_t status = anyop::CheckPacked(call, *args)) return status;
  return anyop::DifferentiatePacked(*args, call);
}
