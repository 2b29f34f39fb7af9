// SPDX-License-Identifier: Apache-2.0
// Gradients of attention, a block of queries by all keys at a time.
//
// A task is one group of heads of one batch: a thread goes over its queries, recomputes their
// weights, and adds up the gradients of the group's keys and values in its lane of the workspace,
// in the same order for any number of threads. Five products of matrices a block: scores,
// gradients of the weights, and the three results. All is float32 for float16 and bfloat16 (rounded
// once, at the end), else of q's type. No more than kScores scores exist for each thread, but
// those of kLeastRows queries.
#include "anyop/ops/attention_backward.h"

#include <algorithm>
#include <cmath>

#include "../linear/convert.h"
#include "../linear/lanes.h"
#include "../linear/multiply.h"
#include "softmax_block.h"
#include "softmax_gradient.h"

namespace anyop {
namespace {

constexpr int64_t kScores = 65536;
constexpr int64_t kLeastRows = 8, kMostRows = 128;

template <typename T>
class AttentionGradient {
 public:
  AttentionGradient(const AttentionBackwardArgs& args, const Blas* blas)
      : args_(args),
        blas_(blas),
        group_(args.H / args.G),
        rows_(std::min(args.S, std::clamp(kScores / args.T, kLeastRows, kMostRows))),
        scale_(args.scale.has ? args.scale.value : 1 / std::sqrt(static_cast<double>(args.D))) {}

  int32_t Run(AnyopCall* call) {
    const int64_t tasks = args_.B * args_.G, lanes = CountLanes(tasks);
    // Keys without features may be any number: more than these would overflow.
    const bool fits = args_.T < int64_t{1} << 40;
    int64_t size = 0;
    if (fits) LaneAt(nullptr, &size);
    auto* memory =
        fits ? static_cast<T*>(call->workspace(call, lanes * size * sizeof(T))) : nullptr;
    if (!memory) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
    ForTasks(call, tasks, lanes, [&](int64_t lane, int64_t task) {
      int64_t size;
      RunTask(task / args_.G, task % args_.G, LaneAt(memory + lane * size_, &size));
    });
    return kAnyopOk;
  }

 private:
  // q, grad, grad_q: of a block of queries; weights, slopes: rows by keys; the others: of all keys.
  struct Lane {
    T *q, *grad, *grad_q, *weights, *slopes, *bias, *k, *v, *grad_k, *grad_v;
  };

  // Divides memory, which may be nullptr to learn how much is needed.
  Lane LaneAt(T* memory, int64_t* size) {
    int64_t used = 0;
    const auto take = [&](int64_t count) {
      T* at = memory ? memory + used : nullptr;
      used += (count + 15) / 16 * 16;
      return at;
    };
    const int64_t T_ = args_.T, D = args_.D, E = args_.E;
    const Lane lane = {take(rows_ * D),  take(rows_ * E), take(rows_ * D), take(rows_ * T_),
                       take(rows_ * T_), take(T_),        take(T_ * D),    take(T_ * E),
                       take(T_ * D),     take(T_ * E)};
    *size = size_ = used;
    return lane;
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

  // Contiguous rows of one head of a result.
  static void Write(const T* from, const AnyopTensor& to, int64_t b, int64_t h, int64_t first,
                    int64_t count) {
    const int64_t length = to.shape[3];
    const int64_t at = ((b * to.shape[1] + h) * to.shape[2] + first) * length;
    Narrow(from, count * length, AnyopDtypeOf(&to), to.data, at);
  }

  void RunTask(int64_t b, int64_t g, const Lane& lane) const {
    const BlasView<T> k = Read(*args_.k, b, g, 0, args_.T, lane.k);
    const BlasView<T> v = Read(*args_.v, b, g, 0, args_.T, lane.v);
    std::fill(lane.grad_k, lane.grad_k + args_.T * args_.D, T(0));
    std::fill(lane.grad_v, lane.grad_v + args_.T * args_.E, T(0));
    for (int64_t h = g * group_; h < (g + 1) * group_; ++h) {
      for (int64_t s = 0; s < args_.S; s += rows_)
        RunRows({b, h, s, std::min(rows_, args_.S - s)}, k, v, lane);
    }
    if (args_.grad_k) Write(lane.grad_k, *args_.grad_k, b, g, 0, args_.T);
    if (args_.grad_v) Write(lane.grad_v, *args_.grad_v, b, g, 0, args_.T);
  }

  // Queries s to s + rows of one head.
  struct Block {
    int64_t b, h, s, rows;
  };

  void RunRows(const Block& block, const BlasView<T>& k, const BlasView<T>& v,
               const Lane& lane) const {
    const int64_t rows = block.rows, D = args_.D, E = args_.E;
    const int64_t keys = args_.causal ? std::min(args_.T, block.s + rows) : args_.T;
    const BlasView<T> q = Read(*args_.q, block.b, block.h, block.s, rows, lane.q);
    const BlasView<T> grad = Read(*args_.grad_out, block.b, block.h, block.s, rows, lane.grad);
    Product({rows, keys, D}, q, Turned(k), 0, lane.weights, keys);
    for (int64_t row = 0; row < rows; ++row) SetWeights(block, row, keys, lane);
    const BlasView<T> weights = {lane.weights, false, keys};
    if (args_.grad_v) Product({keys, E, rows}, Turned(weights), grad, 1, lane.grad_v, E);
    if (!args_.grad_q && !args_.grad_k) return;
    Product({rows, keys, E}, grad, Turned(v), 0, lane.slopes, keys);
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t at = row * keys;
      SoftmaxGradient(lane.weights + at, keys, static_cast<T>(scale_), lane.slopes + at);
    }
    const BlasView<T> slopes = {lane.slopes, false, keys};
    if (args_.grad_k) Product({keys, D, rows}, Turned(slopes), q, 1, lane.grad_k, D);
    if (!args_.grad_q) return;
    Product({rows, D, keys}, slopes, k, 0, lane.grad_q, D);
    Write(lane.grad_q, *args_.grad_q, block.b, block.h, block.s, rows);
  }

  static BlasView<T> Turned(const BlasView<T>& x) { return {x.data, !x.trans, x.ld}; }

  // c = a b + beta c, also where nothing is added up.
  void Product(const Cut& size, const BlasView<T>& a, const BlasView<T>& b, T beta, T* c,
               int64_t ldc) const {
    if (size.M == 0 || size.N == 0) return;
    if (size.K > 0) return Multiply<T>(*blas_, size, a, b, beta, c, ldc);
    if (beta == 0) std::fill(c, c + size.M * ldc, T(0));
  }

  // Scores of one row to weights.
  void SetWeights(const Block& block, int64_t row, int64_t keys, const Lane& lane) const {
    const int64_t query = block.s + row;
    const int64_t visible = args_.causal ? std::min(keys, query + 1) : keys;
    if (const AnyopTensor* mask = args_.mask) {
      const int64_t step = mask->strides[3];
      const int64_t at =
          block.b * mask->strides[0] + block.h * mask->strides[1] + query * mask->strides[2];
      if (mask->dtype_bits == 8) {
        MaskToBias(static_cast<const uint8_t*>(mask->data) + at, step, visible, lane.bias);
      } else {
        Widen(AnyopDtypeOf(mask), mask->data, at, step, visible, lane.bias);
      }
    }
    T* scores = lane.weights + row * keys;
    // Without features all scores are 0, whatever their factor.
    SoftmaxOf(scores, visible, args_.D > 0 ? static_cast<T>(scale_) : T(0),
              args_.mask ? lane.bias : nullptr);
    std::fill(scores + visible, scores + keys, T(0));
  }

  const AttentionBackwardArgs& args_;
  const Blas* blas_;
  int64_t group_, rows_, size_ = 0;
  double scale_;
};

void FillWithZeros(const AnyopTensor* tensor) {
  if (!tensor) return;
  int64_t bytes = tensor->dtype_bits / 8;
  for (int32_t d = 0; d < tensor->ndim; ++d) bytes *= tensor->shape[d];
  auto* data = static_cast<char*>(tensor->data);
  std::fill(data, data + bytes, char{0});
}

}  // namespace
}  // namespace anyop

extern "C" int32_t anyop_attention_backward_cpu(const AttentionBackwardArgs* args,
                                                AnyopCall* call) {
  if (args->B == 0 || args->H == 0 || args->S == 0 || args->T == 0) {
    for (const AnyopTensor* result : {args->grad_q, args->grad_k, args->grad_v})
      anyop::FillWithZeros(result);
    return kAnyopOk;
  }
  const anyop::Blas* blas = nullptr;
  if (const int32_t status = anyop::GetBlas(call, &blas)) return status;
  if (args->q->dtype_bits == 64) return anyop::AttentionGradient<double>(*args, blas).Run(call);
  return anyop::AttentionGradient<float>(*args, blas).Run(call);
}
