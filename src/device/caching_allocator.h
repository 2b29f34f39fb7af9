// SPDX-License-Identifier: Apache-2.0
// Memory of one device, or pinned memory of a platform, kept for who asks next (device_memory.h).
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "anyop/device_memory.h"
#include "block.h"
#include "block_table.h"

namespace anyop {

constexpr int32_t kPinnedMemory = -1;  // in place of a device's index

class CachedMemory {
 public:
  // Makes it at first use; it lives as long as the process.
  static int32_t Find(const AnyopDevice* device, int32_t index, CachedMemory** cache,
                      std::string* error);

  // index: the device that is asked for more; this one's, or any for pinned memory.
  int32_t Take(int32_t index, void* stream, int64_t bytes, void** memory, std::string* error);
  int32_t GiveBack(void* memory, std::string* error);
  int32_t Record(void* memory, int32_t index, void* stream, std::string* error);
  int64_t BytesOf(const void* memory);
  int32_t Empty(std::string* error);
  void Stats(AnyopMemoryStats* stats);
  void ResetPeak();
  void SetLimit(int64_t bytes);

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Stream = std::pair<int32_t, void*>;  // with its device
  struct Homes {
    FreeBlocks small{true}, large{false};
  };
  struct Waiting {
    Block* block;
    void* event;
  };

  CachedMemory(const AnyopDevice* device, int32_t index) : device_(device), index_(index) {}
  static int32_t Make(const AnyopDevice* device, int32_t index, CachedMemory** cache,
                      std::string* error);

  FreeBlocks* HomeOf(void* stream, int64_t bytes);
  Block* NewBlock();
  void ReserveBlocks();
  void Forget(Block* block);
  void Split(Block* block, int64_t bytes);
  void PutBack(Block* block);
  void Join(Block* block, Block* behind);
  int32_t Grow(int32_t index, FreeBlocks* home, int64_t bytes, std::string* error);
  int32_t Refuse(int32_t index, int64_t bytes, const char* text, std::string* error);

  void Collect();
  void RecordUses();
  bool Mark(Block* block, const BlockUse& use);
  void Finish(const Stream& stream, std::deque<Waiting>* waiting);
  void EndWait(Block* block);
  int32_t Release(Lock* lock, std::string* error);
  int32_t WaitForDevices(Lock* lock, std::string* error);
  int32_t FreeSegments(Lock* lock, std::string* error);

  const AnyopDevice* const device_;
  const int32_t index_;
  std::mutex mutex_;  // of all that follows; never held while anything is waited for
  BlockTable given_;
  std::unordered_map<void*, Homes> homes_;
  void* last_stream_ = nullptr;
  Homes* last_homes_ = nullptr;
  // Lists by next: descriptions without memory; given back, with events yet to be recorded; those
  // for which that failed, so that they wait for the whole device.
  Block *spare_ = nullptr, *unrecorded_ = nullptr, *stuck_ = nullptr;
  std::map<Stream, std::deque<Waiting>> waiting_;
  std::map<int32_t, std::vector<void*>> events_;  // of each device, to be used again
  AnyopMemoryStats stats_ = {};
};

}  // namespace anyop
