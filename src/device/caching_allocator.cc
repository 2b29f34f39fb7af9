// SPDX-License-Identifier: Apache-2.0
// Blocks are cut from segments that the device gave, and joined again when they come back. A block
// that other streams use comes back when events recorded behind their work are done.
#include "caching_allocator.h"

#include <algorithm>

#include "fork.h"
#include "loader.h"

namespace anyop {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kSmallest = kMiB;            // of a large block, and of what is cut off one
constexpr int64_t kSmallSegment = 2 * kMiB;    // of blocks up to kSmallest
constexpr int64_t kMiddleSegment = 20 * kMiB;  // of blocks up to half of it
constexpr int64_t kMost = int64_t{1} << 50;

int64_t RoundUp(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

int64_t SegmentBytes(int64_t bytes) {
  if (bytes <= kSmallest) return kSmallSegment;
  return bytes < kMiddleSegment / 2 ? kMiddleSegment : RoundUp(bytes, kSmallSegment);
}

void Count(int64_t* now, int64_t* peak, int64_t change) {
  *now += change;
  *peak = std::max(*peak, *now);
}

}  // namespace

FreeBlocks* CachedMemory::HomeOf(void* stream, int64_t bytes) {
  if (!last_homes_ || stream != last_stream_) {
    last_homes_ = &homes_[stream];
    last_stream_ = stream;
  }
  return bytes <= kSmallest ? &last_homes_->small : &last_homes_->large;
}

// Only this may throw: two for Grow and Split, and a place among those given out.
void CachedMemory::ReserveBlocks() {
  given_.Reserve();
  while (!spare_ || !spare_->next) Forget(new Block);
}

Block* CachedMemory::NewBlock() {
  Block* const block = spare_;
  spare_ = block->next;
  return block;
}

void CachedMemory::Forget(Block* block) {
  block->next = spare_;
  spare_ = block;
}

// Leaves so many bytes in the block, which is not in its bin, and puts what is behind them there.
void CachedMemory::Split(Block* block, int64_t bytes) {
  const int64_t rest = block->bytes - bytes;
  if (block->home->small() ? rest < kUnit : rest <= kSmallest) return;
  Block* const behind = NewBlock();
  behind->begin = block->begin + bytes;
  behind->bytes = rest;
  behind->home = block->home;
  behind->index = block->index;
  behind->before = block;
  behind->behind = block->behind;
  if (block->behind) block->behind->before = behind;
  block->behind = behind;
  block->bytes = bytes;
  block->home->Put(behind);
}

void CachedMemory::Join(Block* block, Block* behind) {
  block->bytes += behind->bytes;
  block->behind = behind->behind;
  if (block->behind) block->behind->before = block;
  Forget(behind);
}

void CachedMemory::PutBack(Block* block) {
  stats_.active_bytes -= block->bytes;
  if (block->behind && block->behind->is_free) {
    block->home->Remove(block->behind);
    Join(block, block->behind);
  }
  if (block->before && block->before->is_free) {
    Block* const before = block->before;
    block->home->Remove(before);
    Join(before, block);
    block = before;
  }
  block->home->Put(block);
}

int32_t CachedMemory::Refuse(int32_t index, int64_t bytes, const char* text, std::string* error) {
  ++stats_.out_of_memory;
  *error = std::string(device_->name) + ": out of " + (index_ < 0 ? "pinned memory" : "memory") +
           " on device " + std::to_string(index) + ": " + std::to_string(bytes) +
           " bytes were asked for; " + std::to_string(stats_.allocated_bytes) +
           " are given out and " + std::to_string(stats_.reserved_bytes - stats_.allocated_bytes) +
           " cached; " + text;
  return kAnyopOutOfMemory;
}

int32_t CachedMemory::Grow(int32_t index, FreeBlocks* home, int64_t bytes, std::string* error) {
  const int64_t whole = SegmentBytes(bytes);
  if (stats_.limit_bytes && stats_.reserved_bytes + whole > stats_.limit_bytes)
    return Refuse(index, bytes, ("the limit is " + std::to_string(stats_.limit_bytes)).c_str(),
                  error);
  Block* const block = NewBlock();
  void* memory = nullptr;
  const auto allocate = index_ == kPinnedMemory ? device_->allocate_host : device_->allocate;
  const int32_t status = allocate(index, whole, &memory);
  if (status || !memory) {
    Forget(block);
    if (!status || status == kAnyopOutOfMemory)
      return Refuse(index, bytes, status ? device_->last_error() : "it gave none", error);
    *error = device_->last_error();
    return status;
  }
  block->begin = static_cast<char*>(memory);
  block->bytes = whole;
  block->home = home;
  block->before = block->behind = nullptr;
  block->index = index;
  home->Put(block);
  Count(&stats_.reserved_bytes, &stats_.reserved_bytes_peak, whole);
  Count(&stats_.segments, &stats_.segments_peak, 1);
  ++stats_.segment_allocations;
  return kAnyopOk;
}

int32_t CachedMemory::Take(int32_t index, void* stream, int64_t bytes, void** memory,
                           std::string* error) {
  *memory = nullptr;
  if (bytes <= 0 || bytes > kMost || Forked()) {
    if (bytes == 0) return kAnyopOk;
    *error = std::string(device_->name) + ": ";
    *error += Forked() ? kForkedText : std::to_string(bytes) + " bytes of memory";
    return Forked() ? kAnyopDeviceError : bytes < 0 ? kAnyopValueError : kAnyopOutOfMemory;
  }
  const int64_t rounded = RoundUp(bytes, kUnit);
  Lock lock(mutex_);
  if (__builtin_expect(unrecorded_ || !waiting_.empty(), 0)) Collect();
  FreeBlocks* const home = HomeOf(stream, rounded);
  Block* block = home->Find(rounded);
  ReserveBlocks();
  for (bool again = true; !block; block = home->Find(rounded)) {
    const int32_t status = Grow(index, home, rounded, error);
    if (status == kAnyopOk) continue;
    if (status != kAnyopOutOfMemory || !again) return status;
    again = false;
    --stats_.out_of_memory;
    ++stats_.retries;
    std::string ignored;  // what is wrong with the device, the second try tells
    (void)Release(&lock, &ignored);
    ReserveBlocks();
  }
  home->Remove(block);
  Split(block, rounded);
  given_.Insert(block);
  Count(&stats_.allocated_bytes, &stats_.allocated_bytes_peak, block->bytes);
  Count(&stats_.active_bytes, &stats_.active_bytes_peak, block->bytes);
  Count(&stats_.blocks, &stats_.blocks_peak, 1);
  ++stats_.allocations;
  *memory = block->begin;
  return kAnyopOk;
}

int32_t CachedMemory::GiveBack(void* memory, std::string* error) {
  if (!memory || Forked()) return kAnyopOk;
  Lock lock(mutex_);
  Block* const block = given_.Take(memory);
  if (!block) {
    *error = std::string(device_->name) +
             ": what is given back is no block of this memory, or "
             "was given back before";
    return kAnyopValueError;
  }
  stats_.allocated_bytes -= block->bytes;
  --stats_.blocks;
  ++stats_.frees;
  if (__builtin_expect(block->uses.empty(), 1)) {
    PutBack(block);
  } else {
    block->next = unrecorded_;
    unrecorded_ = block;
  }
  return kAnyopOk;
}

int32_t CachedMemory::Record(void* memory, int32_t index, void* stream, std::string* error) {
  if (!memory || Forked()) return kAnyopOk;
  Lock lock(mutex_);
  Block* const block = given_.Find(memory);
  if (!block) {
    *error = std::string(device_->name) + ": what a stream shall use is no block of this memory";
    return kAnyopValueError;
  }
  const auto own = index_ == kPinnedMemory ? homes_.end() : homes_.find(stream);
  if (own != homes_.end() &&
      (block->home == &own->second.small || block->home == &own->second.large))
    return kAnyopOk;
  for (const BlockUse& use : block->uses)
    if (use.index == index && use.stream == stream) return kAnyopOk;
  block->uses.push_back({index, stream});
  return kAnyopOk;
}

int64_t CachedMemory::BytesOf(const void* memory) {
  if (Forked()) return 0;
  Lock lock(mutex_);
  const Block* const block = given_.Find(memory);
  return block ? block->bytes : 0;
}

}  // namespace anyop
