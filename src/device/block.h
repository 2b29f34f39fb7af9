// SPDX-License-Identifier: Apache-2.0
// A block of cached memory, and free blocks by their size.
#pragma once

#include <cstdint>
#include <vector>

namespace anyop {

constexpr int64_t kUnit = 512;  // bytes; sizes and addresses of blocks are multiples

class FreeBlocks;

// A stream that works on a block which belongs to another.
struct BlockUse {
  int32_t index;
  void* stream;
};

struct Block {
  char* begin = nullptr;
  int64_t bytes = 0;
  FreeBlocks* home = nullptr;                  // where it lies when it is free
  Block *before = nullptr, *behind = nullptr;  // neighbours in the segment
  Block *next = nullptr, *previous = nullptr;  // in its bin, or another list
  int32_t index = 0;                           // the device that was asked for its segment
  bool is_free = false;
  int32_t waits = 0;  // events of uses that are not done
  std::vector<BlockUse> uses;

  bool IsSegment() const { return !before && !behind; }
};

// Bins of sizes: each of the first 63 units has one, then 32 for each power of two. Small requests
// are cut from segments shared by many, so that large ones do not split.
class FreeBlocks {
 public:
  explicit FreeBlocks(bool small) : small_(small) {}

  bool small() const { return small_; }

  void Put(Block* block) {
    const int bin = BinOf(block->bytes);
    block->is_free = true;
    block->previous = nullptr;
    block->next = heads_[bin];
    if (block->next) block->next->previous = block;
    heads_[bin] = block;
    filled_[bin / 64] |= uint64_t{1} << (bin % 64);
  }

  void Remove(Block* block) {
    const int bin = BinOf(block->bytes);
    block->is_free = false;
    if (block->next) block->next->previous = block->previous;
    (block->previous ? block->previous->next : heads_[bin]) = block->next;
    if (!heads_[bin]) filled_[bin / 64] &= ~(uint64_t{1} << (bin % 64));
  }

  // The smallest bin's block that has so many bytes, which stays here; nullptr when there is none.
  Block* Find(int64_t bytes) const {
    constexpr int kTries = 16;  // in the bin that also has blocks that are too small
    const int bin = BinOf(bytes);
    Block* block = heads_[bin];
    for (int i = 0; block && i < kTries; ++i, block = block->next)
      if (block->bytes >= bytes) return block;
    const int larger = NextFilled(bin + 1);
    return larger < 0 ? nullptr : heads_[larger];
  }

  template <typename Body>
  void ForEach(const Body& body) {  // body may remove the block
    for (Block*& head : heads_) {
      for (Block* block = head; block;) {
        Block* const next = block->next;
        body(block);
        block = next;
      }
    }
  }

 private:
  static constexpr int kExact = 64, kParts = 32, kPowers = 36;
  static constexpr int kBins = kExact + kParts * kPowers, kWords = (kBins + 63) / 64;

  static int BinOf(int64_t bytes) {
    const auto units = static_cast<uint64_t>(bytes / kUnit);
    if (units < kExact) return static_cast<int>(units);
    const int power = 63 - __builtin_clzll(units);  // 6 or more
    const int bin =
        kExact + (power - 6) * kParts + static_cast<int>((units >> (power - 5)) & (kParts - 1));
    return bin < kBins ? bin : kBins - 1;
  }

  int NextFilled(int bin) const {
    for (int word = bin / 64; word < kWords; ++word) {
      uint64_t bits = filled_[word];
      if (word == bin / 64) bits &= ~uint64_t{0} << (bin % 64);
      if (bits) return word * 64 + __builtin_ctzll(bits);
    }
    return -1;
  }

  const bool small_;
  uint64_t filled_[kWords] = {};
  Block* heads_[kBins] = {};
};

}  // namespace anyop
