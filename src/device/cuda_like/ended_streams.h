// SPDX-License-Identifier: Apache-2.0
// Streams that were ended while they worked, for runtimes that would drop that work: each is
// destroyed when it is done, by whoever ends another one.
#pragma once

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime_api.h"

namespace anyop::cuda_like {

class EndedStreams {
 public:
  // Of the device that is current. Returns the code of destroying this stream, 0 where it works.
  Code End(int device, Handle stream, Code (*query)(Handle), Code (*destroy)(Handle)) {
    const std::lock_guard<std::mutex> lock(mutex_);
    streams_.emplace_back(device, stream);
    Code failed = 0;
    const auto is_gone = [&](const std::pair<int, Handle>& one) {
      if (one.first != device || query(one.second) == kNotReady) return false;
      const Code code = destroy(one.second);
      if (one.second == stream) failed = code;
      return true;
    };
    streams_.erase(std::remove_if(streams_.begin(), streams_.end(), is_gone), streams_.end());
    return failed;
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<int, Handle>> streams_;
};

}  // namespace anyop::cuda_like
