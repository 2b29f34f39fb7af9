// SPDX-License-Identifier: Apache-2.0
// A flag that a child of fork() finds raised.
#include "fork.h"

#include <pthread.h>

namespace anyop {

std::atomic<bool> fork_state::forked{false};

void WatchForks() {
  static const int watched = pthread_atfork(
      nullptr, nullptr, [] { fork_state::forked.store(true, std::memory_order_relaxed); });
  (void)watched;
}

}  // namespace anyop
