// SPDX-License-Identifier: Apache-2.0
// What to do when the interpreter ends meanwhile.
#include "gil.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <unistd.h>

#include <new>
#include <utility>

namespace anyop {
namespace {

// Py_IsFinalizing, which was private before 3.13.
bool IsEnding() {
  using Function = int (*)();
  static const auto ask = [] {
    void* found = dlsym(RTLD_DEFAULT, "Py_IsFinalizing");
    return reinterpret_cast<Function>(found ? found : dlsym(RTLD_DEFAULT, "_Py_IsFinalizing"));
  }();
  return !Py_IsInitialized() || (ask && ask());
}

bool HoldsGil() {
  using Function = int (*)();
  static const auto ask =
      reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, "PyGILState_Check"));  // no limited API
  return ask && ask();
}

// Runs what waits for Python's lock. When the interpreter has ended, Python ends this daemon thread
// by pthread_exit, which would unwind frames that hold Python objects or let no exception through.
// Python 3.14 lets such threads sleep for ever; so do we, always.
template <typename Function>
void OrSleep(Function wait) {
  try {
    wait();
  } catch (abi::__forced_unwind&) {
    for (;;) pause();
  }
}

struct Late {
  void (*release)(void*);
  void* object;
  Late* next;
};
std::atomic<Late*> first_late{nullptr};

thread_local bool has_retained = false;

}  // namespace

void RestoreThread(PyThreadState* thread) {
  OrSleep([&] { PyEval_RestoreThread(thread); });
}

std::atomic<bool> has_late{false};

void RetainObject(void* object) {
  if (IsEnding()) return;
  PyGILState_STATE gil;
  OrSleep([&] { gil = PyGILState_Ensure(); });
  Py_INCREF(static_cast<PyObject*>(object));
  PyGILState_Release(gil);
  has_retained = true;
}

bool TakeRetained() { return std::exchange(has_retained, false); }

void ReleaseObject(void* object) {
  if (IsEnding()) return;
  if (HoldsGil())
    Py_DECREF(static_cast<PyObject*>(object));
  else
    DoLate([](void* held) { Py_DECREF(static_cast<PyObject*>(held)); }, object);
}

void DoLate(void (*release)(void*), void* object) {
  if (IsEnding()) return;
  auto* late = new (std::nothrow) Late{release, object, first_late.load()};
  if (!late) return;
  while (!first_late.compare_exchange_weak(late->next, late)) {
  }
  has_late.store(true);
  Py_AddPendingCall([](void*) { return DoAllLate(), 0; }, nullptr);  // may fail: too many wait
}

void DoAllLate() {
  has_late.store(false);
  Late* late = first_late.exchange(nullptr);
  while (late) {
    late->release(late->object);
    delete std::exchange(late, late->next);
  }
}

}  // namespace anyop
