// SPDX-License-Identifier: Apache-2.0
// Blocks are kept by stream and size; those of streams that were ended, with an event behind them.
#include "stream_memory.h"

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "memory.h"

namespace anyop::cuda_like {
namespace {

constexpr int64_t kStep = 512;

using Sizes = std::multimap<int64_t, void*>;

struct Orphans {
  int32_t device;
  Handle event;
  Sizes blocks;
};

struct Kept {
  std::mutex mutex;
  std::map<std::pair<int32_t, Handle>, Sizes> of_streams;
  std::vector<Sizes> idle = std::vector<Sizes>(kMaxDevices);  // any stream's
  std::vector<Orphans> orphans;
};

Kept& TheKept() {
  static auto* kept = new Kept;
  return *kept;
}

// A block of at most twice what is asked for.
bool TakeFrom(Sizes* sizes, int64_t bytes, void** memory, int64_t* size) {
  const auto found = sizes->lower_bound(bytes);
  if (found == sizes->end() || found->first / 2 > bytes) return false;
  *size = found->first;
  *memory = found->second;
  sizes->erase(found);
  return true;
}

// Under the mutex.
void Collect(Kept* kept) {
  const Api& api = TheApi();
  for (size_t i = 0; i < kept->orphans.size();) {
    Orphans& orphans = kept->orphans[i];
    const Code code = api.EventQuery(orphans.event);
    if (code != 0) {
      if (api.GetLastError) api.GetLastError();
      ++i;
      continue;
    }
    api.EventDestroy(orphans.event);
    kept->idle[static_cast<size_t>(orphans.device)].merge(orphans.blocks);
    kept->orphans.erase(kept->orphans.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

}  // namespace

Code TakeKept(int32_t device, Handle stream, int64_t bytes, void** memory, int64_t* size) {
  const int64_t rounded = (bytes + kStep - 1) / kStep * kStep;
  Kept& kept = TheKept();
  {
    const std::lock_guard<std::mutex> lock(kept.mutex);
    if (!kept.orphans.empty()) Collect(&kept);
    if (TakeFrom(&kept.of_streams[{device, stream}], rounded, memory, size)) return 0;
    if (TakeFrom(&kept.idle[static_cast<size_t>(device)], rounded, memory, size)) return 0;
  }
  const Api& api = TheApi();
  *size = rounded;
  const Code code = api.Malloc(memory, static_cast<size_t>(rounded));
  if (code != kOutOfMemory) return code;
  if (api.GetLastError) api.GetLastError();
  if (Code failed = ReleaseKept(device)) return failed;
  return api.Malloc(memory, static_cast<size_t>(rounded));
}

void KeepFor(int32_t device, Handle stream, void* memory, int64_t size) {
  Kept& kept = TheKept();
  const std::lock_guard<std::mutex> lock(kept.mutex);
  kept.of_streams[{device, stream}].emplace(size, memory);
}

Code Orphan(int32_t device, Handle stream) {
  Kept& kept = TheKept();
  const Api& api = TheApi();
  const std::lock_guard<std::mutex> lock(kept.mutex);
  const auto found = kept.of_streams.find({device, stream});
  if (found == kept.of_streams.end()) return 0;
  Handle event = nullptr;
  if (!found->second.empty()) {
    if (Code code = api.EventCreateWithFlags(&event, kDisableTiming)) return code;
    if (Code code = api.EventRecord(event, stream)) {
      api.EventDestroy(event);
      return code;
    }
    kept.orphans.push_back({device, event, std::move(found->second)});
  }
  kept.of_streams.erase(found);
  return 0;
}

Code ReleaseKept(int32_t device) {
  Kept& kept = TheKept();
  const Api& api = TheApi();
  Sizes all;
  {
    const std::lock_guard<std::mutex> lock(kept.mutex);
    for (auto& [whose, sizes] : kept.of_streams) {
      if (whose.first == device) all.merge(sizes);
    }
    all.merge(kept.idle[static_cast<size_t>(device)]);
  }
  Code code = api.DeviceSynchronize();
  for (const auto& [size, memory] : all) {
    const Code freed = api.Free(memory);
    if (!code) code = freed;
  }
  return code;
}

}  // namespace anyop::cuda_like
