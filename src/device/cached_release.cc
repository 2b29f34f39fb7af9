// SPDX-License-Identifier: Apache-2.0
// How cached memory waits for other streams, and goes back to the device.
#include "caching_allocator.h"
#include "fork.h"
#include "loader.h"

namespace anyop {

// Never waits: what is not done stays.
void CachedMemory::Collect() {
  RecordUses();
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    Finish(at->first, &at->second);
    at = at->second.empty() ? waiting_.erase(at) : std::next(at);
  }
}

// Not when the block is given back: that may happen where the device must not be called.
void CachedMemory::RecordUses() {
  while (unrecorded_) {
    Block* const block = unrecorded_;
    unrecorded_ = block->next;
    bool marked = true;
    for (const BlockUse& use : block->uses) marked = Mark(block, use) && marked;
    block->uses.clear();
    if (marked) continue;
    ++block->waits;
    block->next = stuck_;
    stuck_ = block;
  }
}

bool CachedMemory::Mark(Block* block, const BlockUse& use) {
  std::vector<void*>& events = events_[use.index];
  if (!HasFunction(device_, &AnyopDevice::query_event)) return false;
  if (events.empty()) {
    void* event = nullptr;
    const bool flags = HasFunction(device_, &AnyopDevice::create_event_with);
    if (flags ? device_->create_event_with(use.index, kAnyopEventNoTiming, &event)
              : device_->create_event(use.index, &event))
      return false;
    events.push_back(event);
  }
  std::deque<Waiting>& waiting = waiting_[{use.index, use.stream}];
  waiting.push_back({block, events.back()});
  if (device_->record_event(use.index, events.back(), use.stream)) {
    waiting.pop_back();
    return false;
  }
  events.pop_back();
  ++block->waits;
  return true;
}

void CachedMemory::Finish(const Stream& stream, std::deque<Waiting>* waiting) {
  while (!waiting->empty()) {
    const Waiting first = waiting->front();
    int32_t done = 0;
    if (device_->query_event(stream.first, first.event, &done) || !done) return;
    waiting->pop_front();
    events_[stream.first].push_back(first.event);
    EndWait(first.block);
  }
}

void CachedMemory::EndWait(Block* block) {
  if (--block->waits == 0) PutBack(block);
}

int32_t CachedMemory::Release(Lock* lock, std::string* error) {
  Collect();
  const int32_t status = WaitForDevices(lock, error);
  Collect();
  const int32_t freed = FreeSegments(lock, error);
  return status ? status : freed;
}

int32_t CachedMemory::WaitForDevices(Lock* lock, std::string* error) {
  std::vector<int32_t> indices;
  for (const auto& used : events_) indices.push_back(used.first);
  Block* stuck = stuck_;
  stuck_ = nullptr;
  lock->unlock();
  int32_t status = kAnyopOk;
  for (const int32_t index : indices) {
    const int32_t waited = device_->synchronize_device(index);
    if (!waited) continue;
    status = waited;
    *error = device_->last_error();
  }
  lock->lock();
  while (stuck) {
    Block* const block = stuck;
    stuck = block->next;
    if (status) {
      block->next = stuck_;
      stuck_ = block;
    } else {
      EndWait(block);
    }
  }
  return status;
}

// Of each stream, all segments that nothing is in.
int32_t CachedMemory::FreeSegments(Lock* lock, std::string* error) {
  std::vector<Block*> whole;
  for (auto& homes : homes_) {
    for (FreeBlocks* home : {&homes.second.small, &homes.second.large})
      home->ForEach([&](Block* block) {
        if (!block->IsSegment()) return;
        whole.push_back(block);
        home->Remove(block);
      });
  }
  const bool pinned = index_ == kPinnedMemory;
  const auto give_back = pinned ? device_->free_host : device_->free;
  int32_t status = kAnyopOk;
  lock->unlock();
  for (Block* block : whole) {
    if (int32_t freed = give_back(block->index, block->begin)) {
      status = freed;
      *error = device_->last_error();
    }
  }
  lock->lock();
  for (Block* block : whole) {
    stats_.reserved_bytes -= block->bytes;
    --stats_.segments;
    ++stats_.segment_frees;
    Forget(block);
  }
  return status;
}

int32_t CachedMemory::Empty(std::string* error) {
  if (Forked()) return kAnyopOk;
  Lock lock(mutex_);
  return Release(&lock, error);
}

}  // namespace anyop
