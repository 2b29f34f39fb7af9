// SPDX-License-Identifier: Apache-2.0
// The k first elements of rows in order, O(D + k log k) a row for any order of the input.
//
// Elements become integers of the same order. A row is scanned, a vector at a time, for what comes
// before the k-th best so far; that is collected, and whenever the collection is full it is cut to
// its k best. Threads take rows; few long rows are cut into segments, whose best are joined. An
// element is read once.
#include "anyop/ops/topk.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <type_traits>

#include "../linear/lanes.h"
#include "anyop/cpu.h"
#include "row_order.h"

namespace anyop {
namespace {

constexpr int64_t kChunk = 64;  // elements compared before anything is collected

// flags[i] = whether x[i] comes before the threshold.
template <typename Raw>
void Flag(const Raw* x, int64_t n, const Order<Raw>& order, Raw threshold, uint8_t* flags) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) flags[i] = KeyOf(x[i], order) > threshold;
}
ANYOP_CPU_CLONES void FlagAll(const int16_t* x, Order<int16_t> order, int16_t threshold,
                              uint8_t* flags) {
  Flag(x, kChunk, order, threshold, flags);
}
ANYOP_CPU_CLONES void FlagAll(const int32_t* x, Order<int32_t> order, int32_t threshold,
                              uint8_t* flags) {
  Flag(x, kChunk, order, threshold, flags);
}
ANYOP_CPU_CLONES void FlagAll(const int64_t* x, Order<int64_t> order, int64_t threshold,
                              uint8_t* flags) {
  Flag(x, kChunk, order, threshold, flags);
}

// An element's key above the complement of its index: greater is earlier, equal keys come by index.
template <typename Packed, typename Raw>
Packed Pack(Raw key, int64_t index) {
  using Unsigned = std::make_unsigned_t<Raw>;
  constexpr int kIndexBits = 4 * sizeof(Packed);
  const auto ordered =
      static_cast<Unsigned>(static_cast<Unsigned>(key) ^ (Unsigned{1} << (8 * sizeof(Raw) - 1)));
  const Packed low = (Packed{1} << kIndexBits) - 1;
  return static_cast<Packed>(ordered) << kIndexBits | (~static_cast<Packed>(index) & low);
}
template <typename Packed>
int64_t IndexOf(Packed packed) {
  const Packed low = (Packed{1} << 4 * sizeof(Packed)) - 1;
  return static_cast<int64_t>(~packed & low);
}
template <typename Raw, typename Packed>
Raw KeyIn(Packed packed) {
  using Unsigned = std::make_unsigned_t<Raw>;
  const auto ordered = static_cast<Unsigned>(packed >> 4 * sizeof(Packed));
  return static_cast<Raw>(ordered ^ (Unsigned{1} << (8 * sizeof(Raw) - 1)));
}

// Collects the k best of what it is shown.
template <typename Raw, typename Packed>
class Best {
 public:
  static int64_t Capacity(int64_t k) { return k + std::max<int64_t>(k, kChunk); }
  Best(Packed* memory, int64_t k) : best_(memory), k_(k) {}

  void Add(Packed packed) {
    if (count_ == Capacity(k_)) Cut();
    best_[count_++] = packed;
  }

  void Scan(const Raw* x, int64_t begin, int64_t end, const Order<Raw>& order) {
    int64_t i = begin;
    for (; i < end && (count_ < Capacity(k_) && !cut_); ++i)
      Add(Pack<Packed>(KeyOf(x[i], order), i));
    if (i < end && !cut_) Cut();
    for (; i + kChunk <= end; i += kChunk) {
      uint8_t flags[kChunk];
      FlagAll(x + i, order, threshold_, flags);
      for (int64_t word = 0; word < kChunk; word += 8) AddFlagged(x, i + word, flags + word, order);
    }
    for (; i < end; ++i) {
      const Raw key = KeyOf(x[i], order);
      if (key > threshold_) Add(Pack<Packed>(key, i));
    }
  }

  // The best, in order; how many they are.
  int64_t Finish() {
    if (count_ > k_) Cut();
    std::sort(best_, best_ + count_, std::greater<Packed>());
    return count_;
  }
  const Packed* begin() const { return best_; }

 private:
  void AddFlagged(const Raw* x, int64_t first, const uint8_t* flags, const Order<Raw>& order) {
    uint64_t set;
    __builtin_memcpy(&set, flags, sizeof set);
    for (; set != 0; set &= set - 1) {
      const int64_t i = first + __builtin_ctzll(set) / 8;
      Add(Pack<Packed>(KeyOf(x[i], order), i));
    }
  }

  void Cut() {
    std::nth_element(best_, best_ + k_ - 1, best_ + count_, std::greater<Packed>());
    threshold_ = KeyIn<Raw>(best_[k_ - 1]);
    count_ = k_;
    cut_ = true;
  }

  Packed* best_;
  int64_t k_;
  int64_t count_ = 0;
  Raw threshold_ = 0;
  bool cut_ = false;
};

template <typename Raw, typename Packed>
class TopK {
 public:
  TopK(const TopkArgs& args, const Order<Raw>& order) : args_(args), order_(order) {}

  int32_t Run(AnyopCall* call) {
    // Segments only where rows do not keep the threads busy, and long enough that joining them is
    // little.
    const int64_t longest = std::max<int64_t>(32768, 8 * args_.k);
    segments_ = args_.rows >= 64 ? 1 : std::clamp<int64_t>(args_.D / longest, 1, 64);
    const int64_t step =
        segments_ > 1 ? 1 : std::max<int64_t>(1, 8192 / args_.D);  // rows in a task
    const int64_t tasks = (args_.rows * segments_ + step - 1) / step, lanes = CountLanes(tasks);
    const int64_t room = Best<Raw, Packed>::Capacity(args_.k);
    const int64_t joined = segments_ > 1 ? args_.rows * segments_ * args_.k : 0;
    auto* memory =
        static_cast<Packed*>(call->workspace(call, (lanes * room + joined) * sizeof(Packed)));
    if (!memory) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
    Packed* parts = memory + lanes * room;
    ForTasks(call, tasks, lanes, [&](int64_t lane, int64_t task) {
      if (segments_ > 1) return ScanSegment(task, memory + lane * room, parts + task * args_.k);
      for (int64_t row = task * step; row < std::min(args_.rows, (task + 1) * step); ++row)
        ScanRow(row, memory + lane * room);
    });
    if (segments_ == 1) return kAnyopOk;
    ForTasks(call, args_.rows, std::min(lanes, args_.rows), [&](int64_t lane, int64_t row) {
      Best<Raw, Packed> best(memory + lane * room, args_.k);
      const Packed* part = parts + row * segments_ * args_.k;
      for (int64_t i = 0; i < segments_ * args_.k; ++i) best.Add(part[i]);
      Write(row, &best);
    });
    return kAnyopOk;
  }

 private:
  const Raw* Row(int64_t row) const {
    return static_cast<const Raw*>(args_.x->data) + row * args_.D;
  }

  void ScanRow(int64_t row, Packed* memory) const {
    Best<Raw, Packed> best(memory, args_.k);
    best.Scan(Row(row), 0, args_.D, order_);
    Write(row, &best);
  }

  void ScanSegment(int64_t task, Packed* memory, Packed* part) const {
    const int64_t row = task / segments_, segment = task % segments_, length = args_.D / segments_;
    const int64_t begin = segment * length;  // the last one has the rest; each has at least k
    Best<Raw, Packed> best(memory, args_.k);
    best.Scan(Row(row), begin, segment + 1 == segments_ ? args_.D : begin + length, order_);
    std::copy_n(best.begin(), best.Finish(), part);
  }

  void Write(int64_t row, Best<Raw, Packed>* best) const {
    best->Finish();
    auto* values = static_cast<Raw*>(args_.values->data) + row * args_.k;
    auto* indices = static_cast<int64_t*>(args_.indices->data) + row * args_.k;
    for (int64_t j = 0; j < args_.k; ++j) {
      indices[j] = IndexOf(best->begin()[j]);
      values[j] = Row(row)[indices[j]];
    }
  }

  const TopkArgs& args_;
  Order<Raw> order_;
  int64_t segments_ = 1;
};

template <typename Raw>
int32_t Run(const TopkArgs& args, AnyopCall* call, const Order<Raw>& order) {
  if constexpr (sizeof(Raw) < 8) {
    if (args.D <= std::numeric_limits<uint32_t>::max())
      return TopK<Raw, uint64_t>(args, order).Run(call);
  }
  return TopK<Raw, UInt128>(args, order).Run(call);
}

}  // namespace
}  // namespace anyop

extern "C" int32_t anyop_topk_cpu(const TopkArgs* args, AnyopCall* call) {
  if (args->k == 0 || args->rows == 0) return kAnyopOk;
  return anyop::WithOrder(AnyopDtypeOf(args->x), args->largest,
                          [&](const auto& order) { return anyop::Run(*args, call, order); });
}
