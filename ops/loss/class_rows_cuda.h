// SPDX-License-Identifier: Apache-2.0
// Cross entropy of rows of logits on CUDA, and its gradient. A row is read once; sums are float32
// (float64). Who does what: anyop/cuda/row.h. A gradient may be written where the logits lie: the
// target's is that of the thread that holds its vector, behind that vector; of rows that are read
// again one thread writes it, when all others have written.
#pragma once

#include "anyop/cuda/row.h"

namespace anyop::cuda {
namespace {

// What a row's class is, and the numbers of the loss.
template <typename W>
struct ClassNumbers {
  const void* target;
  int64_t rows, V, ignored;
  bool narrow;  // targets are int32
  W smoothing, z_loss;

  template <typename Args>
  explicit ClassNumbers(const Args& args)
      : target(args.target->data),
        rows(args.rows),
        V(args.V),
        ignored(args.ignore_index),
        narrow(args.target->dtype_bits == 32),
        smoothing(static_cast<W>(args.label_smoothing)),
        z_loss(static_cast<W>(args.z_loss)) {}

  __device__ int64_t TargetOf(int64_t row) const {
    return narrow ? static_cast<const int32_t*>(target)[row]
                  : static_cast<const int64_t*>(target)[row];
  }
  __device__ bool Inside(int64_t class_of_row) const {
    return static_cast<uint64_t>(class_of_row) < static_cast<uint64_t>(V);
  }
  // Of a row that has a gradient; else, and behind the last row, -1.
  __device__ int64_t CountedTarget(int64_t row) const {
    const int64_t found = row < rows ? TargetOf(row) : -1;
    return Inside(found) && found != ignored ? found : -1;
  }
  // own: the target's logit; most + log_sum is lse.
  __device__ W Loss(int64_t class_of_row, W most, W log_sum, W own, W total) const {
    if (class_of_row == ignored) return 0;
    if (!Inside(class_of_row)) return static_cast<W>(NAN);
    const W lse = most + log_sum;
    W loss = log_sum + (most - own);
    if (smoothing > 0) loss += smoothing * (own - total / static_cast<W>(V));
    if (z_loss != 0) loss += z_loss * lse * lse;
    return loss;
  }
};

// One logit of a row, and a place for its gradient.
template <typename T, bool kAny>
__device__ Wide<T> ReadOne(const RowsAt<kAny>& x, int64_t row, int64_t at) {
  if constexpr (kAny) {
    return ReadFloating<Wide<T>>(x.At(row), at * x.step, x.dtype());
  } else {
    return Widen(reinterpret_cast<const T*>(x.At(row))[at]);
  }
}
template <typename T, bool kAny>
__device__ void WriteOne(const RowsAt<kAny>& x, int64_t row, int64_t at, Wide<T> v) {
  if constexpr (kAny) {
    WriteFloating<Wide<T>>(x.At(row), at * x.step, x.dtype(), v);
  } else {
    reinterpret_cast<T*>(x.At(row))[at] = Narrow<T>(v);
  }
}

// The target's logit, for the one thread that writes its gradient: the one that writes its vector;
// of rows that are read again, the first, before any writes.
template <typename T, bool kAny>
struct TargetLogit {
  Wide<T> value = static_cast<Wide<T>>(NAN);
  bool mine = false;

  // target: a class, or -1.
  template <typename Row, typename Held>
  __device__ TargetLogit(Row& row, const RowsAt<kAny>& x, int64_t target, const Held& held) {
    if constexpr (kAny) {
      mine = target >= 0 && row.IsFirst();
    } else {
      row.EachPiece(
          [&](int64_t d, const auto&) { mine = mine || (target >= d && target - d < Row::kPer); },
          held);
    }
    if (mine) value = ReadOne<T>(x, row.index(), target);
    __syncwarp();
  }
  // Behind what all threads have written.
  template <typename Row>
  __device__ void Write(Row& row, const RowsAt<kAny>& out, const ClassNumbers<Wide<T>>& numbers,
                        Wide<T> v) const {
    if constexpr (kAny) {
      row.Total(0);
      __syncwarp();
    }
    // The class is read again: a register for two steps of a row would be one too many.
    if (mine) WriteOne<T>(out, row.index(), numbers.TargetOf(row.index()), v);
  }
};

// exp(logit - base) * factor - all; at the target less own besides.
template <typename W>
struct ClassGradient {
  W base, factor, all, own;
  __device__ W operator()(W v) const { return MulAdd(Exponential(v - base), factor, -all); }
};

template <typename T, bool kAny>
struct Losses {
  using W = Wide<T>;
  RowsAt<kAny> x;
  ClassNumbers<W> numbers;
  W *loss, *lse;

  template <typename Row>
  __device__ void operator()(Row& row) const {
    int64_t target = 0;
    W own = 0;
    if (row.IsFirst()) {
      target = numbers.TargetOf(row.index());
      if (numbers.Inside(target)) own = ReadOne<T>(x, row.index(), target);
    }
    const auto v = row.Read(x);
    const W greatest = row.Most(v), most = greatest == W(-INFINITY) ? W(0) : greatest;
    const W sum = row.Sum([=](W sum, W v) { return sum + Exponential(v - most); }, row.Again(v));
    W total = 0;
    if (numbers.smoothing > 0) total = row.Sum([](W sum, W v) { return sum + v; }, row.Again(v));
    if (!row.IsFirst()) return;
    const W log_sum = log(sum);
    lse[row.index()] = greatest + log_sum;
    loss[row.index()] = numbers.Loss(target, greatest, log_sum, own, total);
  }
};

template <typename T, bool kAny>
struct LossesAndGradients {
  using W = Wide<T>;
  RowsAt<kAny> x, grad_x;
  ClassNumbers<W> numbers;
  const W* scale;  // NULL: 1
  W* loss;

  template <typename Row>
  __device__ void operator()(Row& row) const {
    const int64_t target = numbers.CountedTarget(row.index());
    if (target < 0) row.Keep(0);  // nothing is read
    const auto v = row.Read(x);
    const TargetLogit<T, kAny> own(row, x, target, v);
    const W most = row.Most(v);
    const W sum = row.Sum([=](W sum, W v) { return sum + Exponential(v - most); }, row.Again(v));
    W total = 0;
    if (numbers.smoothing > 0) total = row.Sum([](W sum, W v) { return sum + v; }, row.Again(v));
    const W given = scale ? *scale : W(1);
    const W log_sum = log(sum), of_sum = 1 + 2 * numbers.z_loss * (most + log_sum);
    const ClassGradient<W> gradient = {most, (numbers.z_loss != 0 ? of_sum : W(1)) / sum * given,
                                       numbers.smoothing / static_cast<W>(numbers.V) * given,
                                       (1 - numbers.smoothing) * given};
    row.Write(grad_x, gradient, v);
    row.WriteRest(grad_x);
    own.Write(row, grad_x, numbers, gradient(own.value) - gradient.own);
    if (own.mine || (row.IsFirst() && numbers.CountedTarget(row.index()) < 0)) {
      const int64_t again = numbers.TargetOf(row.index());
      loss[row.index()] = numbers.Loss(again, most, log_sum, own.value, total);
    }
  }
};

template <typename T, bool kAny>
struct Gradients {
  using W = Wide<T>;
  RowsAt<kAny> x, grad_x;
  ClassNumbers<W> numbers;
  const W *lse, *grad_loss, *grad_lse;

  template <typename Row>
  __device__ void operator()(Row& row) const {
    const int64_t r = row.index() < numbers.rows ? row.index() : 0,
                  target = numbers.CountedTarget(r);
    const W given = target >= 0 && grad_loss ? grad_loss[r] : W(0),
            of_lse = grad_lse ? grad_lse[r] : 0;
    const W log_sum = lse[r];
    const W of_sum = numbers.z_loss != 0 ? given * (1 + 2 * numbers.z_loss * log_sum) : given;
    if (given == 0 && of_lse == 0) row.Keep(0);
    const ClassGradient<W> gradient = {log_sum, of_sum + of_lse,
                                       given * numbers.smoothing / static_cast<W>(numbers.V),
                                       given * (1 - numbers.smoothing)};
    const auto v = row.Read(x);
    const TargetLogit<T, kAny> own(row, x, given != 0 ? target : -1, v);
    if constexpr (kAny) row.Total(0);  // none writes before the target's logit is read
    row.Write(grad_x, gradient, v);
    row.WriteRest(grad_x);
    own.Write(row, grad_x, numbers, gradient(own.value) - gradient.own);
  }
};

// Rows of no class.
template <typename W>
__global__ void __launch_bounds__(128)
    WriteWithoutClasses(const __grid_constant__ ClassNumbers<W> numbers, W* loss, W* lse) {
  for (int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; row < numbers.rows;
       row += int64_t{gridDim.x} * blockDim.x) {
    loss[row] = numbers.TargetOf(row) == numbers.ignored ? W(0) : static_cast<W>(NAN);
    if (lse) lse[row] = static_cast<W>(-INFINITY);
  }
}
template <typename W>
int32_t RunWithoutClasses(AnyopCall* call, const ClassNumbers<W>& numbers, W* loss, W* lse) {
  if (numbers.rows == 0) return kAnyopOk;
  const int64_t blocks = CeilDiv(numbers.rows, 128);
  const Launch launch{dim3(static_cast<unsigned>(blocks < 65535 ? blocks : 65535)), dim3(128)};
  return launch.Run(call, WriteWithoutClasses<W>, numbers, loss, lse);
}

template <typename W>
W* DataOf(const AnyopTensor* tensor) {
  return tensor ? static_cast<W*>(tensor->data) : nullptr;
}

}  // namespace
}  // namespace anyop::cuda
