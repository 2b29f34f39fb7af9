// SPDX-License-Identifier: Apache-2.0
// sort of rows on the CPU: a radix sort of keys and indices, from the lowest digit up, which keeps
// the order of equal elements. Threads take rows.
//
// A digit has 8 bits; one pass over the keys counts all of them, and one over keys and indices
// moves them for each digit in which they differ. Short rows are sorted by comparison.
#include "anyop/ops/sort.h"

#include <algorithm>
#include <type_traits>

#include "../linear/lanes.h"
#include "row_order.h"

namespace anyop {
namespace {

constexpr int64_t kShortRow = 128;
constexpr int kDigitBits = 8, kDigits = 1 << kDigitBits;

// Elements as numbers: the place of the element, smaller is earlier, above its index.
template <typename Raw, typename Packed>
class RowSort {
 public:
  static constexpr int kIndexBits = 4 * sizeof(Packed), kPasses = sizeof(Raw);

  // memory: 2 D numbers.
  RowSort(Packed* memory, int64_t D, const Order<Raw>& order)
      : here_(memory), there_(memory + D), D_(D), order_(order) {}

  // The numbers of a row, in order.
  const Packed* Sort(const Raw* row) {
    for (int64_t i = 0; i < D_; ++i) here_[i] = PlaceOf(row[i]) << kIndexBits | Packed(i);
    if (D_ <= kShortRow) {
      std::sort(here_, here_ + D_);
      return here_;
    }
    int64_t counts[kPasses][kDigits] = {};
    for (int64_t i = 0; i < D_; ++i) {
      for (int pass = 0; pass < kPasses; ++pass) ++counts[pass][Digit(here_[i], pass)];
    }
    for (int pass = 0; pass < kPasses; ++pass) {
      if (counts[pass][Digit(here_[0], pass)] < D_) Move(pass, counts[pass]);
    }
    return here_;
  }

 private:
  Packed PlaceOf(Raw bits) const {
    using Unsigned = std::make_unsigned_t<Raw>;
    const auto last = static_cast<Unsigned>(std::numeric_limits<Raw>::max());
    return static_cast<Unsigned>(last - static_cast<Unsigned>(KeyOf(bits, order_)));
  }

  static int Digit(Packed number, int pass) {
    return static_cast<int>(number >> (kIndexBits + pass * kDigitBits)) & (kDigits - 1);
  }

  // counts: of each digit; becomes where the next number with it goes.
  void Move(int pass, int64_t* counts) {
    int64_t next = 0;
    for (int digit = 0; digit < kDigits; ++digit) {
      const int64_t count = counts[digit];
      counts[digit] = next;
      next += count;
    }
    for (int64_t i = 0; i < D_; ++i) there_[counts[Digit(here_[i], pass)]++] = here_[i];
    std::swap(here_, there_);
  }

  Packed *here_, *there_;
  int64_t D_;
  Order<Raw> order_;
};

template <typename Packed, typename Raw>
int32_t SortRows(const SortArgs& args, AnyopCall* call, const Order<Raw>& order) {
  const int64_t D = args.D, step = std::max<int64_t>(1, 8192 / D);  // rows in a task
  const int64_t tasks = (args.rows + step - 1) / step, lanes = CountLanes(tasks);
  const int64_t bytes = lanes * 2 * D * static_cast<int64_t>(sizeof(Packed));
  auto* memory = static_cast<Packed*>(call->workspace(call, bytes));
  if (!memory) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  ForTasks(call, tasks, lanes, [&](int64_t lane, int64_t task) {
    RowSort<Raw, Packed> sort(memory + lane * 2 * D, D, order);
    for (int64_t row = task * step; row < std::min(args.rows, (task + 1) * step); ++row) {
      const Raw* x = static_cast<const Raw*>(args.x->data) + row * D;
      const Packed* sorted = sort.Sort(x);
      auto* values = static_cast<Raw*>(args.values->data) + row * D;
      auto* indices = static_cast<int64_t*>(args.indices->data) + row * D;
      const Packed index = (Packed{1} << RowSort<Raw, Packed>::kIndexBits) - 1;
      for (int64_t j = 0; j < D; ++j) indices[j] = static_cast<int64_t>(sorted[j] & index);
      for (int64_t j = 0; j < D; ++j) values[j] = x[indices[j]];
    }
  });
  return kAnyopOk;
}

}  // namespace
}  // namespace anyop

extern "C" int32_t anyop_sort_cpu(const SortArgs* args, AnyopCall* call) {
  if (args->D == 0 || args->rows == 0) return kAnyopOk;
  const auto run = [&](const auto& order) {
    if constexpr (sizeof(order.flip) < 8) {
      if (args->D <= std::numeric_limits<uint32_t>::max())
        return anyop::SortRows<uint64_t>(*args, call, order);
    }
    return anyop::SortRows<anyop::UInt128>(*args, call, order);
  };
  return anyop::WithOrder(AnyopDtypeOf(args->x), args->descending, run);
}
