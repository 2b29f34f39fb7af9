// SPDX-License-Identifier: Apache-2.0
// A bounded table of small plans, found by words that say the kind of a call; no lock, no memory
// that is ever freed.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

namespace anyop {

// Plan: a trivial type. A kind has four places; one more kind takes the place of another. Readers
// copy a plan and look whether it was written meanwhile (Lameter 2005, sequence locks), by atomic
// words.
template <int kKeyWords, typename Plan, int kSets = 256>
class PlanTable {
 public:
  struct Key {
    uint64_t words[kKeyWords];
  };

  bool Find(const Key& key, Plan* plan) const {
    const Slot* set = slots_[SetOf(key)];
    for (int way = 0; way < kWays; ++way)
      if (set[way].Read(key, plan)) return true;
    return false;
  }

  void Keep(const Key& key, const Plan& plan) {
    Slot* set = slots_[SetOf(key)];
    for (int way = 0; way < kWays; ++way)
      if (set[way].is_empty() && set[way].Write(key, plan)) return;
    set[next_.fetch_add(1, std::memory_order_relaxed) % kWays].Write(key, plan);
  }

 private:
  static constexpr int kWays = 4, kPlanWords = sizeof(Plan) / 8;
  static_assert(sizeof(Plan) % 8 == 0, "");

  struct Contents {
    Key key;
    Plan plan;
  };
  static constexpr int kWords = sizeof(Contents) / 8;

  class Slot {
   public:
    bool is_empty() const { return version_.load(std::memory_order_relaxed) == 0; }

    bool Read(const Key& key, Plan* plan) const {
      const uint64_t before = version_.load(std::memory_order_acquire);
      if (before == 0 || before % 2) return false;
      uint64_t words[kWords];
      for (int i = 0; i < kKeyWords; ++i) {
        words[i] = words_[i].load(std::memory_order_relaxed);
        if (words[i] != key.words[i]) return false;
      }
      for (int i = kKeyWords; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_acquire);
      if (version_.load(std::memory_order_relaxed) != before) return false;
      std::memcpy(plan, words + kKeyWords, sizeof *plan);
      return true;
    }

    // False when another thread writes it.
    bool Write(const Key& key, const Plan& plan) {
      uint64_t before = version_.load(std::memory_order_relaxed);
      if (before % 2 || !version_.compare_exchange_strong(before, before + 1)) return false;
      std::atomic_thread_fence(std::memory_order_release);
      const Contents contents = {key, plan};
      uint64_t words[kWords];
      std::memcpy(words, &contents, sizeof words);
      for (int i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_relaxed);
      version_.store(before + 2, std::memory_order_release);
      return true;
    }

   private:
    std::atomic<uint64_t> version_{0};  // 0: empty; odd: being written
    std::atomic<uint64_t> words_[kWords]{};
  };

  static int SetOf(const Key& key) {
    uint64_t hash = 0;
    for (const uint64_t word : key.words)
      hash = (hash ^ word) * 0x9e3779b97f4a7c15ull + (hash >> 29);
    return static_cast<int>((hash ^ hash >> 32) % kSets);
  }

  Slot slots_[kSets][kWays];
  std::atomic<uint32_t> next_{0};
};

}  // namespace anyop
