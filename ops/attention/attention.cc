// SPDX-License-Identifier: Apache-2.0
// Attention block by block: some queries by a block of keys at a time, so that the scores stay in
// the cache.
//
// A task is a block of queries of heads that share keys. A thread keeps, in its lane of the
// workspace, the scaled queries, one block of scores, sums and maxima; it goes over the keys once.
// Keys and values are read where they lie, or converted block by block. Scores, weights and sums
// are float32 for float16 and bfloat16 (rounded once, at the end), else of q's type. Scores lie key
// by key (see softmax_block.cc) where there are rows enough to fill vectors. No more than kRows x
// kKeys of them exist for each thread.
#include "anyop/ops/attention.h"

#include <algorithm>
#include <cmath>

#include "../linear/convert.h"
#include "../linear/lanes.h"
#include "../linear/multiply.h"
#include "softmax_block.h"

namespace anyop {
namespace {

constexpr int64_t kRows = 128;      // queries in a task, at most
constexpr int64_t kKeys = 1024;     // keys at a time, at most
constexpr int64_t kByKeyFrom = 16;  // rows that fill a vector

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t RoundUp(int64_t n, int64_t to) { return CeilDiv(n, to) * to; }

// Blocks of about the same size, none above most.
int64_t EvenBlock(int64_t whole, int64_t most) {
  return std::max<int64_t>(1, CeilDiv(whole, std::max<int64_t>(1, CeilDiv(whole, most))));
}

template <typename T>
class Attention {
 public:
  Attention(const AttentionArgs& args, const Blas* blas) : args_(args), blas_(blas) {
    const int64_t group = args.H / args.G, widest = std::max<int64_t>({args.D, args.E, 1});
    int64_t rows = kRows;
    while (rows > 32 && rows * 64 * widest > kInPlace) rows /= 2;
    block_rows_ = EvenBlock(args.S, rows);
    block_heads_ = EvenBlock(group, std::max<int64_t>(1, rows / std::max<int64_t>(args.S, 1)));
    rows_ = block_rows_ * block_heads_;
    const int64_t keys = std::clamp<int64_t>(kInPlace / (rows_ * widest) / 16 * 16, 32, kKeys);
    keys_ = std::min(args.T, RoundUp(EvenBlock(args.T, keys), 16));
    head_blocks_ = CeilDiv(group, block_heads_);
    row_blocks_ = CeilDiv(args.S, block_rows_);
    const double scale =
        args.scale.has ? args.scale.value : 1 / std::sqrt(static_cast<double>(args.D));
    scale_ = static_cast<T>(scale * 1.44269504088896340736);  // 1 / ln 2: see softmax_block.h
  }

  int32_t Run(AnyopCall* call) {
    const int64_t tasks = args_.B * args_.G * head_blocks_ * row_blocks_, lanes = CountLanes(tasks);
    const AnyopTensor* mask = args_.mask;
    own_bias_ = mask && (mask->strides[1] != 0 || mask->strides[2] != 0);
    int64_t lane_size = 0;
    LaneAt(nullptr, &lane_size);
    auto* memory = static_cast<T*>(call->workspace(call, lanes * lane_size * sizeof(T)));
    if (!memory) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
    ForTasks(call, tasks, lanes, [&](int64_t lane, int64_t task) {
      int64_t size;
      RunTask(TaskAt(task), LaneAt(memory + lane * lane_size, &size));
    });
    return kAnyopOk;
  }

 private:
  struct Lane {
    T* q;  // rows by D, or D by rows when the scores lie by key
    T* q_rows;
    T* k;
    T* v;
    T* scores;
    T* bias;
    T* out;
    T* max;
    T* sum;
    T* visible;
  };
  // Queries s to s + block of heads h to h + heads, row by row of head after head.
  struct Task {
    int64_t b, g, h, s, heads, block;
    int64_t rows() const { return heads * block; }
    int64_t Head(int64_t row) const { return h + row / block; }
    int64_t Query(int64_t row) const { return s + row % block; }
  };

  // Divides memory, which may be nullptr to learn how much is needed.
  Lane LaneAt(T* memory, int64_t* size) const {
    int64_t used = 0;
    const auto take = [&](int64_t count) {
      T* at = memory ? memory + used : nullptr;
      used += RoundUp(count, 16);
      return at;
    };
    const int64_t bias = !args_.mask ? 0 : own_bias_ ? rows_ * keys_ : keys_;
    const Lane lane = {take(rows_ * args_.D), take(rows_ * args_.D),
                       take(keys_ * args_.D), take(keys_ * args_.E),
                       take(rows_ * keys_),   take(bias),
                       take(rows_ * args_.E), take(rows_),
                       take(rows_),           take(rows_)};
    *size = used;
    return lane;
  }

  static int64_t At(const AnyopTensor& t, int64_t i, int64_t j, int64_t k) {
    return i * t.strides[0] + j * t.strides[1] + k * t.strides[2];
  }

  Task TaskAt(int64_t index) const {
    Task task;
    task.s = index % row_blocks_ * block_rows_;
    index /= row_blocks_;
    const int64_t group = args_.H / args_.G, first = index % head_blocks_ * block_heads_;
    index /= head_blocks_;
    task.g = index % args_.G;
    task.b = index / args_.G;
    task.h = task.g * group + first;
    task.heads = std::min(block_heads_, group - first);
    task.block = std::min(block_rows_, args_.S - task.s);
    return task;
  }

  void RunTask(const Task& task, const Lane& lane) const {
    const int64_t D = args_.D, rows = task.rows();
    const bool by_key = rows >= kByKeyFrom;
    T* q = by_key ? lane.q_rows : lane.q;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t at = At(*args_.q, task.b, task.Head(row), task.Query(row));
      Widen(AnyopDtypeOf(args_.q), args_.q->data, at, 1, D, q + row * D);
    }
    Scale(scale_, rows * D, q);
    if (by_key) Transpose(q, rows, D, lane.q);
    const int64_t keys = args_.causal ? std::min(args_.T, task.s + task.block) : args_.T;
    for (int64_t t = 0; t < keys; t += keys_)
      RunKeys(task, t, std::min(keys_, keys - t), by_key, lane);
    if (keys == 0) std::fill(lane.sum, lane.sum + rows, T(0));
    for (int64_t row = 0; row < rows; ++row) WriteRow(task, row, lane);
  }

  void RunKeys(const Task& task, int64_t t, int64_t keys, bool by_key, const Lane& lane) const {
    const int64_t rows = task.rows(), E = args_.E;
    const bool cut = args_.causal && task.s + 1 < t + keys;  // not all seen by the first query
    if (args_.mask) SetBias(task, t, keys, by_key, lane);
    SetScores(task, t, keys, by_key, lane);
    for (int64_t row = 0; cut && row < rows; ++row)
      lane.visible[row] = static_cast<T>(std::clamp<int64_t>(task.Query(row) + 1 - t, 0, keys));
    UpdateSoftmax(SoftmaxBlock<T>{lane.scores, by_key, rows, keys, args_.mask ? lane.bias : nullptr,
                                  own_bias_, cut ? lane.visible : nullptr, lane.max, lane.sum,
                                  lane.out, E, t == 0});
    const BlasView<T> weights = {lane.scores, by_key, by_key ? rows : keys};
    const BlasView<T> v = Rows(*args_.v, task, t, keys, E, lane.v);
    Multiply<T>(*blas_, {rows, E, keys}, weights, v, T(t > 0), lane.out, E);
  }

  void SetScores(const Task& task, int64_t t, int64_t keys, bool by_key, const Lane& lane) const {
    const int64_t rows = task.rows(), D = args_.D;
    if (D == 0) {
      std::fill(lane.scores, lane.scores + rows * keys, T(0));
      return;
    }
    const BlasView<T> k = Rows(*args_.k, task, t, keys, D, lane.k);
    if (by_key) {
      Multiply<T>(*blas_, {keys, rows, D}, k, {lane.q, false, rows}, 0, lane.scores, rows);
    } else {
      Multiply<T>(*blas_, {rows, keys, D}, {lane.q, false, D}, {k.data, true, k.ld}, 0, lane.scores,
                  keys);
    }
  }

  // Where they lie when the BLAS can read them there.
  BlasView<T> Rows(const AnyopTensor& x, const Task& task, int64_t t, int64_t count, int64_t length,
                   T* scratch) const {
    const AnyopDtype dtype = AnyopDtypeOf(&x);
    const int64_t at = At(x, task.b, task.g, t), step = x.strides[2];
    if (SizeOf(dtype) == sizeof(T) && step >= length)
      return {static_cast<const T*>(x.data) + at, false, step};
    for (int64_t i = 0; i < count; ++i)
      Widen(dtype, x.data, at + i * step, 1, length, scratch + i * length);
    return {scratch, false, length};
  }

  // The mask as numbers to be added; rows of it are put together where the scores will be.
  void SetBias(const Task& task, int64_t t, int64_t keys, bool by_key, const Lane& lane) const {
    const AnyopTensor& mask = *args_.mask;
    const bool turn = own_bias_ && by_key;
    const int64_t step = mask.strides[3], rows = own_bias_ ? task.rows() : 1;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t at = At(mask, task.b, task.Head(row), task.Query(row)) + t * step;
      T* bias = (turn ? lane.scores : lane.bias) + row * keys;
      if (mask.dtype_bits == 8) {
        MaskToBias(static_cast<const uint8_t*>(mask.data) + at, step, keys, bias);
      } else {
        Widen(AnyopDtypeOf(&mask), mask.data, at, step, keys, bias);
      }
    }
    if (turn) Transpose(lane.scores, rows, keys, lane.bias);
  }

  void WriteRow(const Task& task, int64_t row, const Lane& lane) const {
    T* out = lane.out + row * args_.E;
    if (lane.sum[row] == 0) {
      std::fill(out, out + args_.E, T(0));
    } else {
      Scale(1 / lane.sum[row], args_.E, out);
    }
    const int64_t at = At(*args_.out, task.b, task.Head(row), task.Query(row));
    Narrow(out, args_.E, AnyopDtypeOf(args_.out), args_.out->data, at);
  }

  const AttentionArgs& args_;
  const Blas* blas_;
  int64_t block_rows_, block_heads_, rows_, keys_, head_blocks_, row_blocks_;
  bool own_bias_ = false;  // the mask differs between the rows of a task
  T scale_;
};

}  // namespace
}  // namespace anyop

extern "C" int32_t anyop_attention_cpu(const AttentionArgs* args, AnyopCall* call) {
  if (args->B == 0 || args->H == 0 || args->S == 0 || args->E == 0) return kAnyopOk;
  const anyop::Blas* blas = nullptr;
  if (args->T > 0) {
    if (const int32_t status = anyop::GetBlas(call, &blas)) return status;
  }
  if (args->q->dtype_bits == 64) return anyop::Attention<double>(*args, blas).Run(call);
  return anyop::Attention<float>(*args, blas).Run(call);
}
