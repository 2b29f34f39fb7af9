// SPDX-License-Identifier: Apache-2.0
// A bounded table of plans that are kept for ever: captured graphs may hold their kernels, so that
// none takes another's place. No lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <new>

namespace anyop {

template <int kKeyWords, typename Plan, int kMost>
class KeptPlans {
 public:
  struct Key {
    uint64_t words[kKeyWords];
    bool operator==(const Key& other) const {
      for (int i = 0; i < kKeyWords; ++i)
        if (words[i] != other.words[i]) return false;
      return true;
    }
  };

  const Plan* Find(const Key& key) const {
    for (uint64_t at = PlaceOf(key);; ++at) {
      const Kept* kept = places_[at % kPlaces].load(std::memory_order_acquire);
      if (!kept) return nullptr;
      if (kept->key == key) return &kept->plan;
    }
  }

  bool is_full() const { return count_.load(std::memory_order_relaxed) >= kMost; }

  // The plan of the key from now on, which is another's who came first; nullptr where there is no
  // room or no memory. Each thread asks is_full() first: few more than kMost are kept.
  const Plan* Keep(const Key& key, const Plan& plan) {
    std::unique_ptr<Kept> made(new (std::nothrow) Kept{key, plan});
    if (!made) return nullptr;
    for (uint64_t at = PlaceOf(key), tried = 0; tried < kPlaces; ++at, ++tried) {
      std::atomic<const Kept*>& place = places_[at % kPlaces];
      const Kept* there = place.load(std::memory_order_acquire);
      if (!there && place.compare_exchange_strong(there, made.get(), std::memory_order_acq_rel)) {
        count_.fetch_add(1, std::memory_order_relaxed);
        return &made.release()->plan;
      }
      if (there->key == key) return &there->plan;
    }
    return nullptr;
  }

 private:
  static constexpr uint64_t kPlaces = uint64_t{2} * kMost;  // half of them stay empty
  struct Kept {
    Key key;
    Plan plan;
  };

  static uint64_t PlaceOf(const Key& key) {
    uint64_t hash = 0;
    for (const uint64_t word : key.words)
      hash = (hash ^ word) * 0x9e3779b97f4a7c15ull + (hash >> 29);
    return hash ^ hash >> 32;
  }

  std::atomic<const Kept*> places_[kPlaces]{};
  std::atomic<int> count_{0};
};

}  // namespace anyop
