// SPDX-License-Identifier: Apache-2.0
// Tasks that need scratch memory: a lane is a piece of it, used by one thread at a time.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>

#include "anyop/kernel.h"

namespace anyop {

// As many as CPUs may work on the tasks at once: the pool does not tell its number of threads.
inline int64_t CountLanes(int64_t tasks) {
  cpu_set_t set;
  const int64_t cpus = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 64;
  return std::clamp<int64_t>(tasks, 1, std::min<int64_t>(cpus, 64));
}

// body(lane, task) for every task; the threads take tasks one by one.
template <typename Body>
void ForTasks(AnyopCall* call, int64_t tasks, int64_t lanes, const Body& body) {
  std::atomic<int64_t> next{0};
  ParallelFor(call, lanes, 1, [&](int64_t begin, int64_t end) {
    for (int64_t lane = begin; lane < end; ++lane) {
      for (;;) {
        const int64_t task = next.fetch_add(1, std::memory_order_relaxed);
        if (task >= tasks) break;
        body(lane, task);
      }
    }
  });
}

}  // namespace anyop
