// SPDX-License-Identifier: Apache-2.0
// Python's lock: let go around long work, and taken by threads that Python may not know.
//
// Once the interpreter ends, nobody but the thread that ends it gets the lock. Who waits for it
// sleeps for ever; who would begin to, is told so. No lock of anyop's may be held while waiting.
#pragma once

#include <atomic>

#include "python.h"

namespace anyop {

// Whether Python has ended or is about to: its lock may not be waited for.
bool IsEnding();

// Once, before any call: threads that wait for the lock then sleep, in whoever's frames.
void KeepEndedThreads();

// Within its life other Python threads run.
class WithoutGil : NoCopy {
 public:
  WithoutGil() : thread_(PyEval_SaveThread()) {}
  ~WithoutGil() { PyEval_RestoreThread(thread_); }

 private:
  PyThreadState* thread_;
};

// body() while other Python threads run: they may hold a lock that body takes, and wait for
// Python's.
template <typename Body>
auto Unlocked(const Body& body) {
  const WithoutGil unlocked;
  return body();
}

// Within its life this thread has Python's lock, whether it had it before or not. False, and
// without it, where the interpreter has ended or is about to.
class WithGil : NoCopy {
 public:
  WithGil();
  ~WithGil() {
    if (taken_) PyGILState_Release(state_);
  }
  explicit operator bool() const { return taken_; }

 private:
  const bool taken_;
  PyGILState_STATE state_;
};

// Another reference, from any thread that may wait for Python's lock.
void RetainObject(void* object);
// Whether RetainObject has been called in this thread since it was last asked.
bool TakeRetained();

// One less, from any thread, whatever other locks it holds: without Python's lock in hand, it is
// done late. Nothing happens once the interpreter ends.
void ReleaseObject(void* object);

// release(object) with Python's lock in hand and no other: soon, by Python or by the next
// ReleaseLate. For who is called inside of a framework's locks and may free other tensors of it.
void DoLate(void (*release)(void*), void* object);
extern std::atomic<bool> has_late;
void DoAllLate();
inline void ReleaseLate() {
  if (__builtin_expect(has_late.load(std::memory_order_relaxed), 0)) DoAllLate();
}

}  // namespace anyop
