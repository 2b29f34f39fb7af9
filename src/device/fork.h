// SPDX-License-Identifier: Apache-2.0
// Whether this process is the child of one that had used a device: it has none of the threads, and
// locks may be held by those it has not.
#pragma once

#include <atomic>

namespace anyop {

namespace fork_state {
extern std::atomic<bool> forked;
}

// Called before a device's first use.
void WatchForks();

inline bool Forked() { return fork_state::forked.load(std::memory_order_relaxed); }

constexpr const char* kForkedText =
    "the process was forked after the device's first use, and a child cannot use it; start the "
    "child with 'spawn', or use the device only after the fork";

}  // namespace anyop
