// SPDX-License-Identifier: Apache-2.0
// What to do when the interpreter ends meanwhile.
#include "gil.h"

#include <dlfcn.h>

#include <new>
#include <utility>

namespace anyop {
namespace {

bool HoldsGil() {
  using Function = int (*)();
  static const auto ask =
      reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, "PyGILState_Check"));  // no limited API
  return ask && ask();
}

struct Late {
  void (*release)(void*);
  void* object;
  Late* next;
};
std::atomic<Late*> first_late{nullptr};

thread_local bool has_retained = false;

}  // namespace

// Python's thread that ends it runs here too, at times: what it calls then must do without.
WithGil::WithGil() : taken_(!IsEnding()) {
  if (taken_) state_ = PyGILState_Ensure();
}

std::atomic<bool> has_late{false};

void RetainObject(void* object) {
  const WithGil gil;
  if (!gil) return;
  Py_INCREF(static_cast<PyObject*>(object));
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
