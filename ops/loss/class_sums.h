// SPDX-License-Identifier: Apache-2.0
// The logits of one row on the CPU, 1,024 at a time: the greatest, the sum of exponentials, the
// loss.
#ifndef ANYOP_OPS_LOSS_CLASS_SUMS_H_
#define ANYOP_OPS_LOSS_CLASS_SUMS_H_

#include "anyop/cpu/math.h"
#include "anyop/cpu/rows.h"
#include "loss_numbers.h"
#include "targets.h"

namespace anyop::cpu {

// What is known of a row: the greatest logit, the sum of exp(logit - most), that of the logits.
struct ClassSums {
  double most = -Bits<double>::kInfinity, sum = 0, total = 0, target = 0;

  // Joins parts of a row, as in Milakov & Gimelshein 2018, arXiv:1805.02867.
  void Join(double most_of_part, double sum_of_part) {
    if (most_of_part == -Bits<double>::kInfinity) {
      sum += sum_of_part;  // 0, or NaN
    } else if (most_of_part > most) {
      sum = sum * Exp(most - most_of_part) + sum_of_part;
      most = most_of_part;
    } else {
      sum += sum_of_part * Exp(most_of_part - most);
    }
  }
  // Up to kBlock more logits.
  template <typename Wide>
  void Add(int64_t n, const Wide* z, bool with_total) {
    const auto greater = [](Wide a, Wide b) { return a < b ? b : a; };
    const auto same = [](Wide v) { return v; };
    const Wide lowest = -Bits<Wide>::kInfinity;
    const Wide greatest = FoldBlock(lowest, greater, same, n, z);
    const Wide base = greatest == lowest ? Wide{0} : greatest;
    const auto power = [base](Wide v) { return Exp2Negative((v - base) * kLog2E<Wide>); };
    Join(greatest, SumBlock(n, power, z));
    if (with_total) total += SumBlock(n, same, z);
  }

  double log_sum() const { return most + Log(sum); }
  // Of a row that is not ignored.
  double Loss(int64_t V, double smoothing, double z_loss) const {
    const double log_of_sum = log_sum();
    double loss = log_of_sum - (1 - smoothing) * target;
    if (smoothing > 0) loss -= smoothing * (total / static_cast<double>(V));
    if (z_loss != 0) loss += z_loss * log_of_sum * log_of_sum;
    return loss;
  }
};

// Of a whole row; target: none where it is not a class.
template <typename Wide>
inline ClassSums SumsOfRow(int64_t V, RowReader<Wide>& in, int64_t target, bool with_total) {
  ClassSums sums;
  ForBlocks(V, [&](int64_t at, int64_t size) {
    const Wide* z = in.Read(at, size);
    sums.Add(size, z, with_total);
    if (target >= at && target < at + size) sums.target = z[target - at];
  });
  return sums;
}

inline int64_t SizeOfFloat(AnyopDtype dtype) {
  return dtype == kAnyopFloat64 ? 8 : dtype == kAnyopFloat32 ? 4 : 2;
}

// The gradient of a row: exp(logit - base) * factor - all, at the target less own besides.
template <typename Wide>
struct ClassGradient {
  Wide base, factor, all, own;

  Wide operator()(Wide v) const { return Exp2Negative((v - base) * kLog2E<Wide>) * factor - all; }
  // to: may be where the row lies. target: as above.
  void Write(int64_t V, RowReader<Wide>& in, int64_t target, AnyopDtype dtype, char* to) const {
    const ClassGradient gradient = *this;
    Wide at_target = 0;
    RowWriter<Wide> out(dtype, to);
    ForBlocks(V, [&](int64_t at, int64_t size) {
      const Wide* z = in.Read(at, size);
      if (target >= at && target < at + size) at_target = gradient(z[target - at]) - gradient.own;
      Apply(size, gradient, out.Target(at), z);
      out.Write(at, size);
    });
    if (target < 0 || target >= V) return;
    RowWriter<Wide> one(dtype, to + target * SizeOfFloat(dtype));
    *one.Target(0) = at_target;
    one.Write(0, 1);
  }
};

// All rows of a call by `run`, once its numbers and targets are known to be right.
template <typename Args>
int32_t RunClassRows(AnyopCall* call, const Args* args,
                     void (*run)(const Args*, int64_t, int64_t)) {
  const Targets targets(args->target, args->ignore_index);
  if (const int32_t status = CheckLossNumbers(call, args->label_smoothing, 0)) return status;
  if (const int32_t status = CheckTargets(call, *args->target, targets, args->rows, args->V))
    return status;
  return RunRows(call, args, args->rows, args->V, run);
}

}  // namespace anyop::cpu

#endif  // ANYOP_OPS_LOSS_CLASS_SUMS_H_
