// SPDX-License-Identifier: Apache-2.0
// Python's lock: let go around long work, and taken by threads that Python may not know.
#pragma once

#include <atomic>

#include "python.h"

namespace anyop {

// PyEval_RestoreThread, for threads that hold Python objects in their frames.
void RestoreThread(PyThreadState* thread);

// Within its life other Python threads run.
class WithoutGil {
 public:
  WithoutGil() : thread_(PyEval_SaveThread()) {}
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  ~WithoutGil() { RestoreThread(thread_); }

 private:
  PyThreadState* thread_;
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
