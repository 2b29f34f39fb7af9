// SPDX-License-Identifier: Apache-2.0
// Memory that a plugin gave out, by every address that lies in it. A Block has bytes and an owner.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <shared_mutex>

namespace anyop {

constexpr int32_t kPinned = -1;  // the owner of memory of the host

template <typename Block>
class OwnedBlocks {
 public:
  // The block in which this address lies, and where it begins; false: nobody's.
  bool Find(const void* memory, uintptr_t* begin, Block* block) {
    const auto address = reinterpret_cast<uintptr_t>(memory);
    const std::shared_lock<std::shared_mutex> lock(mutex_);
    const auto next = by_address_.upper_bound(address);
    if (next == by_address_.begin()) return false;
    const auto at = std::prev(next);
    if (address - at->first >= static_cast<uint64_t>(at->second.bytes)) return false;
    *begin = at->first;
    *block = at->second;
    return true;
  }

  void Keep(void* memory, const Block& block) {
    const std::lock_guard<std::shared_mutex> lock(mutex_);
    by_address_[reinterpret_cast<uintptr_t>(memory)] = block;
  }

  // Takes out what begins here; false: nothing that owner has does.
  bool Take(int32_t owner, void* memory, Block* block) {
    const std::lock_guard<std::shared_mutex> lock(mutex_);
    const auto found = by_address_.find(reinterpret_cast<uintptr_t>(memory));
    if (found == by_address_.end() || found->second.owner != owner) return false;
    *block = found->second;
    by_address_.erase(found);
    return true;
  }

 private:
  std::shared_mutex mutex_;
  std::map<uintptr_t, Block> by_address_;
};

}  // namespace anyop
