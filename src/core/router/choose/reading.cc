// SPDX-License-Identifier: Apache-2.0
// Readers count themselves by the parity of the epoch in which they came. An epoch ends when the
// readers of the one before it have gone; what was retired before it began is nobody's then.
#include "router/choose/reading.h"

#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>

#include "router/router_state.h"

namespace anyop {
namespace {

std::atomic<uint32_t> epoch{0};
std::atomic<int64_t> readers[2];
std::atomic<bool> has_retired{false};

// Under the router's lock: retired in this epoch, and before it.
Readable* fresh = nullptr;
Readable* waiting = nullptr;

// What came before this epoch, where its readers have gone; another epoch begins.
Readable* TakeFree() {
  const uint32_t now = epoch.load();
  if (readers[(now + 1) & 1].load() != 0) return nullptr;
  Readable* free = std::exchange(waiting, std::exchange(fresh, nullptr));
  epoch.store(now + 1);
  return free;
}

void Delete(Readable* list) {
  while (list) delete std::exchange(list, list->next_retired);
}

}  // namespace

Reading::Reading() {
  for (;;) {
    const uint32_t now = epoch.load();
    parity_ = static_cast<int>(now & 1);
    readers[parity_].fetch_add(1);
    if (epoch.load() == now) return;
    readers[parity_].fetch_sub(1);
  }
}

Reading::~Reading() {
  readers[parity_].fetch_sub(1);
  if (has_retired.load(std::memory_order_relaxed)) FreeRetired();
}

void Retire(Readable* object) {
  object->next_retired = std::exchange(fresh, object);
  has_retired = true;
}

void FreeRetired() {
  Readable *first = nullptr, *second = nullptr;
  {
    const std::lock_guard<std::mutex> lock(TheRouter().mutex);
    if (!fresh && !waiting) return;
    first = TakeFree();
    second = TakeFree();  // with no reader at all, everything
    has_retired = fresh || waiting;
  }
  Delete(first);
  Delete(second);
}

}  // namespace anyop
