// SPDX-License-Identifier: Apache-2.0
// Attention block by block: some queries by a block of keys at a time, so that the scores stay in
// the cache.
//
// A task is a block of queries of heads that share keys. A thread keeps, in its lane of the
// workspace, the scaled queries, one block of scores, sums and maxima; it goes once over the keys
// that one of its queries may see.
// Keys and values are read where they lie, converted block by block, or gathered from the pages of
// a cache; bfloat16 is multiplied by pairs (paired_block.h) where the CPU can and there are rows
// enough. Scores, weights and sums are float32 for float16 and bfloat16 (rounded once, at the
// end), else of q's type. Scores lie key by key (see softmax_block.cc) where there are rows enough
// to fill vectors. No more than kRows x kKeys of them exist for each thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "../linear/byte_floats.h"
#include "../linear/convert.h"
#include "../linear/lanes.h"
#include "../linear/multiply.h"
#include "attention_problem.h"
#include "latent_row.h"
#include "paired_block.h"
#include "softmax_block.h"

namespace anyop {

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t RoundUp(int64_t n, int64_t to) { return CeilDiv(n, to) * to; }

// Blocks of about the same size, none above most.
inline int64_t EvenBlock(int64_t whole, int64_t most) {
  return std::max<int64_t>(1, CeilDiv(whole, std::max<int64_t>(1, CeilDiv(whole, most))));
}

template <typename T>
class Attention {
  static constexpr int64_t kRows = 128;      // queries in a task, at most
  static constexpr int64_t kKeys = 1024;     // keys at a time, at most
  static constexpr int64_t kByKeyFrom = 16;  // rows that fill a vector
  // Rows that are worth panels of keys and values; those of pages are copied anyway.
  static constexpr int64_t kPairedFrom = 64, kPairedFromOfPages = 32;
  static constexpr int64_t kPairedNumbers = 65536;  // of keys, or values, of a block by pairs
  static constexpr double kLog2E = 1.44269504088896340736, kLn2 = 0.69314718055994530942;

 public:
  Attention(const AttentionProblem& args, const Blas* blas) : args_(args), blas_(blas) {
    const int64_t group = args.H / args.G, widest = std::max<int64_t>({args.D, args.E, 1});
    const bool pairs = TakesPairs();
    int64_t rows = pairs && widest > 256 ? kRows / 2 : kRows;  // more tasks of latent rows
    while (!pairs && rows > 32 && rows * 64 * widest > kInPlace) rows /= 2;
    block_rows_ = EvenBlock(args.S, rows);
    block_heads_ = EvenBlock(group, std::max<int64_t>(1, rows / std::max<int64_t>(args.S, 1)));
    rows_ = block_rows_ * block_heads_;
    paired_ = pairs && rows_ >= (args.pages.table ? kPairedFromOfPages : kPairedFrom);
    const int64_t keys =
        paired_ ? std::clamp<int64_t>(kPairedNumbers / widest / 64 * 64, 64, 256)
                : std::clamp<int64_t>(kInPlace / (rows_ * widest) / 16 * 16, 32, kKeys);
    keys_ = std::min(args.T, RoundUp(EvenBlock(args.T, keys), 16));
    const PagedCache& pages = args.pages;
    one_tensor_ = pages.table && args.k == args.v && !pages.k_scale && !pages.v_scale;
    head_blocks_ = CeilDiv(group, block_heads_);
    row_blocks_ = CeilDiv(args.S, block_rows_);
    scale_ = static_cast<T>(args.scale * kLog2E);  // see softmax_block.h
    cuts_ = args.window.Cuts(args.S);
    const AnyopTensor* mask = args.mask;
    biased_ = mask || args.slopes;
    own_bias_ = args.slopes || (mask && (mask->strides[1] != 0 || mask->strides[2] != 0));
  }

  // Of the memory that Run needs.
  int64_t CountBytes() const { return CountLanes(CountTasks()) * CountLaneBytes(); }

  void Run(AnyopCall* call, void* memory) const {
    const int64_t tasks = CountTasks(), bytes = CountLaneBytes();
    ForTasks(call, tasks, CountLanes(tasks), [&](int64_t lane, int64_t task) {
      RunTask(task, static_cast<char*>(memory) + lane * bytes);
    });
  }

  // The same task by task, for who shares out those of many problems.
  int64_t CountTasks() const { return args_.B * args_.G * head_blocks_ * row_blocks_; }
  int64_t CountLaneBytes() const {
    int64_t size = 0;
    LaneAt(nullptr, &size);
    return size * static_cast<int64_t>(sizeof(T));
  }
  void RunTask(int64_t task, void* lane) const {
    int64_t size;
    RunTask(TaskAt(task), LaneAt(static_cast<T*>(lane), &size));
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
    T* hidden;
    T* clean;  // values without what is not finite
    uint16_t* pairs;
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
    const int64_t bias = !biased_ ? 0 : own_bias_ ? rows_ * keys_ : keys_;
    const Lane lane = {
        take(rows_ * args_.D),
        take(rows_ * args_.D),
        take(keys_ * args_.D),
        take(one_tensor_ && !paired_ ? 0 : keys_ * args_.E),
        take(rows_ * keys_),
        take(bias),
        take(rows_ * args_.E),
        take(rows_),
        take(rows_),
        take(rows_),
        take(rows_),
        take(cuts_ ? keys_ * args_.E : 0),
        reinterpret_cast<uint16_t*>(take(paired_ ? PairsAt(nullptr).CountElements() / 2 : 0))};
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
    const int64_t rows = task.rows();
    const bool by_key = !paired_ && rows >= kByKeyFrom;
    paired_ ? SetPairedQueries(task, lane) : SetQueries(task, by_key, lane);
    const KeyWindow& window = args_.window;
    const int64_t first = window.First(task.s), end = window.End(task.s + task.block - 1);
    for (int64_t t = first; t < end; t += keys_)
      RunKeys(task, {t, std::min(keys_, end - t), t == first, by_key}, lane);
    if (first >= end) {
      std::fill(lane.sum, lane.sum + rows, T(0));
      std::fill(lane.max, lane.max + rows, -std::numeric_limits<T>::infinity());
    }
    for (int64_t row = 0; row < rows; ++row) WriteRow(task, row, lane);
  }

  void SetQueries(const Task& task, bool by_key, const Lane& lane) const {
    const int64_t D = args_.D, rows = task.rows();
    T* q = by_key ? lane.q_rows : lane.q;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t at = At(*args_.q, task.b, task.Head(row), task.Query(row));
      Widen(AnyopDtypeOf(args_.q), args_.q->data, at, 1, D, q + row * D);
    }
    Scale(scale_, rows * D, q);
    if (by_key) Transpose(q, rows, D, lane.q);
  }

  // Keys t to t + count; the first of the task or not; how their scores lie.
  struct Keys {
    int64_t t, count;
    bool first, by_key;
  };

  void RunKeys(const Task& task, const Keys& keys, const Lane& lane) const {
    const int64_t rows = task.rows(), E = args_.E, last = task.s + task.block - 1;
    const KeyWindow& window = args_.window;
    const bool cut = window.End(task.s) < keys.t + keys.count;  // not all seen by the first query
    const bool cut_left = window.First(last) > keys.t;
    if (biased_) SetBias(task, keys, lane);
    SetScores(task, keys, lane);
    for (int64_t row = 0; (cut || cut_left) && row < rows; ++row) {
      const int64_t s = task.Query(row);
      lane.visible[row] =
          static_cast<T>(std::clamp<int64_t>(window.End(s) - keys.t, 0, keys.count));
      lane.hidden[row] =
          static_cast<T>(std::clamp<int64_t>(window.First(s) - keys.t, 0, keys.count));
    }
    UpdateSoftmax(SoftmaxBlock<T>{
        lane.scores, keys.by_key, rows, keys.count, biased_ ? lane.bias : nullptr, own_bias_,
        cut || cut_left ? lane.visible : nullptr, cut_left ? lane.hidden : nullptr, lane.max,
        lane.sum, lane.out, E, keys.first});
    if (E == 0) return;
    if (paired_) return AddPairedValues(task, keys, cut || cut_left, lane);
    const BlasView<T> weights = {lane.scores, keys.by_key, keys.by_key ? rows : keys.count};
    // Of one tensor they were gathered for the scores.
    const BlasView<T> v = one_tensor_ ? BlasView<T>{lane.k, false, args_.D}
                                      : Rows(*args_.v, task, keys.t, keys.count, E, lane.v);
    const bool cleaned = (cut || cut_left) && Clean(v, keys.count, lane.clean);
    Multiply<T>(*blas_, {rows, E, keys.count}, weights,
                cleaned ? BlasView<T>{lane.clean, false, E} : v, T(!keys.first), lane.out, E);
    if (cleaned) AddBadValues(v, weights, rows, keys.count, lane);
  }

  // A weight of 0 times infinity would be NaN for the queries that do not see such a value.
  bool Clean(const BlasView<T>& v, int64_t keys, T* clean) const {
    bool finite = true;
    for (int64_t t = 0; t < keys; ++t) finite &= AllFinite(v.At(t, 0), args_.E);
    for (int64_t t = 0; !finite && t < keys; ++t) {
      for (int64_t e = 0; e < args_.E; ++e)
        clean[t * args_.E + e] = std::isfinite(*v.At(t, e)) ? *v.At(t, e) : T(0);
    }
    return !finite;
  }
  void AddBadValues(const BlasView<T>& v, const BlasView<T>& weights, int64_t rows, int64_t keys,
                    const Lane& lane) const {
    for (int64_t t = 0; t < keys; ++t) {
      if (AllFinite(v.At(t, 0), args_.E)) continue;
      for (int64_t row = 0; row < rows; ++row) {
        const auto place = static_cast<T>(t);
        if (place >= lane.visible[row] || place < lane.hidden[row]) continue;
        for (int64_t e = 0; e < args_.E; ++e)
          if (!std::isfinite(*v.At(t, e)))
            lane.out[row * args_.E + e] += *weights.At(row, t) * *v.At(t, e);
      }
    }
  }

  void SetScores(const Task& task, const Keys& block, const Lane& lane) const {
    const int64_t rows = task.rows(), D = args_.D, keys = block.count;
    if (D == 0) {
      std::fill(lane.scores, lane.scores + rows * keys, T(0));
      return;
    }
    if (paired_) return SetPairedScores(task, block, lane);
    const BlasView<T> k = Rows(*args_.k, task, block.t, keys, D, lane.k);
    if (block.by_key) {
      Multiply<T>(*blas_, {keys, rows, D}, k, {lane.q, false, rows}, 0, lane.scores, rows);
    } else {
      Multiply<T>(*blas_, {rows, keys, D}, {lane.q, false, D}, {k.data, true, k.ld}, 0, lane.scores,
                  keys);
    }
    if (args_.softcap > 0) Cap(static_cast<T>(args_.softcap * kLog2E), rows * keys, lane.scores);
  }

  // ---- by pairs of bfloat16 ----

  bool TakesPairs() const {
    const auto is_bf16 = [](const AnyopTensor* x) { return AnyopDtypeOf(x) == kAnyopBFloat16; };
    return sizeof(T) == sizeof(float) && is_bf16(args_.q) && is_bf16(args_.k) && args_.D > 0 &&
           !args_.pages.k_scale && !args_.pages.v_scale && HasBF16Dots();
  }
  PairedBlock PairsAt(uint16_t* memory) const {
    return PairedBlock({rows_, keys_, args_.D, args_.E, cuts_ || args_.pages.table}, memory);
  }
  void SetPairedQueries(const Task& task, const Lane& lane) const {
    const PairedBlock pairs = PairsAt(lane.pairs);
    for (int64_t row = 0; row < task.rows(); ++row) {
      const int64_t at = At(*args_.q, task.b, task.Head(row), task.Query(row));
      pairs.SetQuery(row, static_cast<const uint16_t*>(args_.q->data) + at);
    }
  }
  BFloat16Rows PairedRows(const AnyopTensor& x, const Task& task, const Keys& keys, int64_t length,
                          const PairedBlock& pairs) const {
    const auto* data = static_cast<const uint16_t*>(x.data);
    if (!args_.pages.table) return {data + At(x, task.b, task.g, keys.t), x.strides[2]};
    return pairs.Gather(keys.count, length, [&](int64_t i) {
      return data + args_.pages.RowOf(x, keys.t + i) + task.g * x.strides[2];
    });
  }
  void SetPairedScores(const Task& task, const Keys& keys, const Lane& lane) const {
    if constexpr (sizeof(T) == sizeof(float)) {
      const PairedBlock pairs = PairsAt(lane.pairs);
      pairs.SetScores(PairedRows(*args_.k, task, keys, args_.D, pairs), task.rows(), keys.count,
                      lane.scores);
      Scale(scale_, task.rows() * keys.count, lane.scores);
      if (args_.softcap > 0)
        Cap(static_cast<T>(args_.softcap * kLog2E), task.rows() * keys.count, lane.scores);
    }
  }
  void AddPairedValues(const Task& task, const Keys& keys, bool cut, const Lane& lane) const {
    if constexpr (sizeof(T) == sizeof(float)) {
      const PairedBlock pairs = PairsAt(lane.pairs);
      BFloat16Rows v =
          one_tensor_ ? pairs.Gathered(args_.D) : PairedRows(*args_.v, task, keys, args_.E, pairs);
      const bool clean = cut && !pairs.IsFinite(v, keys.count);
      if (clean) v = pairs.Clean(v, keys.count);
      pairs.AddValues(lane.scores, v, task.rows(), keys.count, keys.first, lane.out);
      if (clean) {
        AddBadValues(Rows(*args_.v, task, keys.t, keys.count, args_.E, lane.v),
                     {lane.scores, false, keys.count}, task.rows(), keys.count, lane);
      }
    }
  }

  // Where they lie when the BLAS can read them there.
  BlasView<T> Rows(const AnyopTensor& x, const Task& task, int64_t t, int64_t count, int64_t length,
                   T* scratch) const {
    if (args_.pages.table) return PagedRows(x, task.g, t, count, length, scratch);
    const AnyopDtype dtype = AnyopDtypeOf(&x);
    const int64_t at = At(x, task.b, task.g, t), step = x.strides[2];
    if (SizeOf(dtype) == sizeof(T) && step >= length)
      return {static_cast<const T*>(x.data) + at, false, step};
    for (int64_t i = 0; i < count; ++i)
      Widen(dtype, x.data, at + i * step, 1, length, scratch + i * length);
    return {scratch, false, length};
  }

  static void Read(AnyopDtype dtype, const void* from, int64_t at, int64_t n, T* to) {
    if constexpr (sizeof(T) == sizeof(float)) {
      if (dtype == kAnyopUInt8) return LatentRow::Read(static_cast<const uint8_t*>(from) + at, to);
      if (dtype == kAnyopFloat8E4M3FN)
        return cpu::WidenBytes(dtype, static_cast<const uint8_t*>(from) + at, n, 1, to);
    }
    Widen(dtype, from, at, 1, n, to);
  }

  // From their pages, times the group's scale.
  BlasView<T> PagedRows(const AnyopTensor& x, int64_t g, int64_t t, int64_t count, int64_t length,
                        T* scratch) const {
    const PagedCache& pages = args_.pages;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = pages.RowOf(x, t + i) + g * x.strides[2];
      Read(AnyopDtypeOf(&x), x.data, at, length, scratch + i * length);
    }
    const AnyopTensor* scale = &x == args_.k ? pages.k_scale : pages.v_scale;
    if (scale) {
      Scale(static_cast<T>(static_cast<const float*>(scale->data)[g * scale->strides[0]]),
            count * length, scratch);
    }
    return {scratch, false, length};
  }

  // Mask and slopes as numbers to be added; rows of them are put together where the scores will be.
  void SetBias(const Task& task, const Keys& keys, const Lane& lane) const {
    const bool turn = own_bias_ && keys.by_key;
    const int64_t rows = own_bias_ ? task.rows() : 1;
    for (int64_t row = 0; row < rows; ++row) {
      T* bias = (turn ? lane.scores : lane.bias) + row * keys.count;
      SetMask(task, row, keys, bias);
      if (args_.slopes) AddSlope(task.Head(row), task.Query(row), keys, bias);
    }
    if (turn) Transpose(lane.scores, rows, keys.count, lane.bias);
  }
  void SetMask(const Task& task, int64_t row, const Keys& keys, T* bias) const {
    if (!args_.mask) return std::fill(bias, bias + keys.count, T(0));
    const AnyopTensor& mask = *args_.mask;
    const int64_t step = mask.strides[3];
    const int64_t at = At(mask, task.b, task.Head(row), task.Query(row)) + keys.t * step;
    if (mask.dtype_bits == 8) {
      MaskToBias(static_cast<const uint8_t*>(mask.data) + at, step, keys.count, bias);
    } else {
      Widen(AnyopDtypeOf(&mask), mask.data, at, step, keys.count, bias);
    }
  }
  void AddSlope(int64_t head, int64_t s, const Keys& keys, T* bias) const {
    const T slope = static_cast<const float*>(args_.slopes->data)[head];
    const int64_t place = s + args_.window.offset - keys.t;
    for (int64_t t = 0; t < keys.count; ++t) bias[t] -= slope * static_cast<T>(std::abs(place - t));
  }

  void WriteRow(const Task& task, int64_t row, const Lane& lane) const {
    const int64_t h = task.Head(row), s = task.Query(row);
    T max = lane.max[row], sum = lane.sum[row], share = 1;
    if (args_.sinks) {
      const T sink =
          static_cast<T>(static_cast<const float*>(args_.sinks->data)[h]) * static_cast<T>(kLog2E);
      const T most = sink <= max ? max : sink;  // NaN where the sink is
      if (most != -std::numeric_limits<T>::infinity()) {
        share = std::exp2(max - most);
        sum = sum * share + std::exp2(sink - most);
        max = most;
      }
    }
    T* out = lane.out + row * args_.E;
    if (lane.sum[row] == 0) {
      std::fill(out, out + args_.E, T(0));
    } else {
      Scale(share / sum, args_.E, out);
    }
    Narrow(out, args_.E, AnyopDtypeOf(args_.out), args_.out->data, At(*args_.out, task.b, h, s));
    if (!args_.lse) return;
    static_cast<float*>(args_.lse->data)[At(*args_.lse, task.b, h, s)] =
        static_cast<float>((static_cast<double>(max) + std::log2(static_cast<double>(sum))) * kLn2);
  }

  const AttentionProblem& args_;
  const Blas* blas_;
  int64_t block_rows_, block_heads_, rows_, keys_, head_blocks_, row_blocks_;
  bool biased_, own_bias_;  // by a mask or slopes, which differ between the rows of a task
  bool cuts_;               // a query does not see every key
  bool one_tensor_;         // of keys and values
  bool paired_;             // products by pairs of bfloat16
  T scale_;
};

inline void* TakeMemory(AnyopCall* call, int64_t bytes) {
  void* memory = call->workspace(call, bytes);
  if (!memory) call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  return memory;
}

// Problems 0 to count - 1, which have as many tasks each: threads take any task of any of them.
// with(i, visit) calls visit(problem).
template <typename T, typename With>
int32_t AttendTogether(int64_t count, const With& with, AnyopCall* call) {
  const Blas* blas = nullptr;
  if (const int32_t status = GetBlas(call, &blas)) return status;
  int64_t tasks = 0, bytes = 0;
  for (int64_t i = 0; i < count; ++i) {
    with(i, [&](const AttentionProblem& problem) {
      const Attention<T> attention(problem, blas);
      tasks = attention.CountTasks();
      bytes = std::max(bytes, attention.CountLaneBytes());
    });
  }
  const int64_t lanes = CountLanes(count * tasks);
  void* memory = TakeMemory(call, lanes * bytes);
  if (!memory) return kAnyopOutOfMemory;
  ForTasks(call, count * tasks, lanes, [&](int64_t lane, int64_t index) {
    with(index / tasks, [&](const AttentionProblem& problem) {
      void* own = static_cast<char*>(memory) + lane * bytes;
      Attention<T>(problem, blas).RunTask(index % tasks, own);
    });
  });
  return kAnyopOk;
}

}  // namespace anyop
