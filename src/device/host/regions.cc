// SPDX-License-Identifier: Apache-2.0
// Each region lies between two runs of known bytes, which are looked at when it is freed.
#include "regions.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>

#include "anyop/device.h"
#include "last_error.h"

namespace anyop::host {
namespace {

constexpr size_t kAlignment = 512, kGuard = 64;  // the front guard fills a whole alignment
constexpr unsigned char kMark = 0xA5;

struct Table {
  std::mutex mutex;
  std::map<uintptr_t, Region> regions;
};

Table& TheTable() {
  static auto* table = new Table;
  return *table;
}

bool IsMarked(const unsigned char* bytes, size_t count) {
  return std::all_of(bytes, bytes + count, [](unsigned char byte) { return byte == kMark; });
}

bool GuardsHold(const Region& region) {
  const auto* memory = reinterpret_cast<const unsigned char*>(region.begin);
  return IsMarked(memory - kGuard, kGuard) && IsMarked(memory + region.bytes, kGuard);
}

const char* What(int32_t owner) { return owner == kPinned ? "pinned memory" : "memory of it"; }

}  // namespace

Region FindRegion(const void* memory) {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  Table& table = TheTable();
  std::lock_guard<std::mutex> lock(table.mutex);
  auto next = table.regions.upper_bound(address);
  if (next == table.regions.begin()) return {};
  const Region& region = std::prev(next)->second;
  return address - region.begin < static_cast<uintptr_t>(region.bytes) ? region : Region{};
}

int32_t MakeRegion(int32_t owner, int64_t bytes, void** memory) try {
  *memory = nullptr;
  if (bytes < 0) return RefuseOnDevice(kAnyopValueError, "host: %lld bytes", (long long)bytes);
  if (bytes == 0) return kAnyopOk;
  const int64_t there = int64_t{sysconf(_SC_PAGESIZE)} * sysconf(_SC_PHYS_PAGES);
  const auto size = static_cast<size_t>(bytes);
  const size_t whole = (size + 2 * kAlignment - 1) / kAlignment * kAlignment + kAlignment;
  auto* base =
      static_cast<unsigned char*>(bytes <= there ? std::aligned_alloc(kAlignment, whole) : nullptr);
  if (!base)
    return RefuseOnDevice(kAnyopOutOfMemory, "host: there are no %lld bytes", (long long)bytes);
  unsigned char* begin = base + kAlignment;
  std::memset(begin - kGuard, kMark, kGuard);
  std::memset(begin + size, kMark, kGuard);
  const auto address = reinterpret_cast<uintptr_t>(begin);
  Table& table = TheTable();
  std::lock_guard<std::mutex> lock(table.mutex);
  table.regions[address] = {owner, address, bytes};
  *memory = begin;
  return kAnyopOk;
} catch (const std::bad_alloc&) {
  return RefuseOnDevice(kAnyopOutOfMemory, "host: out of memory");
}

int32_t DropRegion(int32_t owner, void* memory) {
  Table& table = TheTable();
  Region region;
  {
    std::lock_guard<std::mutex> lock(table.mutex);
    const auto found = table.regions.find(reinterpret_cast<uintptr_t>(memory));
    if (found == table.regions.end() || found->second.owner != owner)
      return RefuseOnDevice(kAnyopValueError, "host: %p is no %s, or was freed already", memory,
                            What(owner));
    region = found->second;
    table.regions.erase(found);
  }
  const bool held = GuardsHold(region);
  std::free(static_cast<unsigned char*>(memory) - kAlignment);
  if (held) return kAnyopOk;
  return RefuseOnDevice(kAnyopDeviceError,
                        "host: something was written before or behind the %lld bytes at %p",
                        (long long)region.bytes, memory);
}

}  // namespace anyop::host
