// SPDX-License-Identifier: Apache-2.0
// Counts the calls that arrive at kernels, whichever framework they come from: the router does, for
// operators that are watched. Others pay nothing.
#include "operators/observe.h"

#include <dlfcn.h>

#include "operators/function.h"
#include "router/router.h"

namespace anyop {
namespace {

// The row of one kernel.
PyObject* Describe(const Implementation& i, bool is_watched) {
  const auto address = reinterpret_cast<uintptr_t>(i.run);
  Dl_info found = {};
  if (!dladdr(reinterpret_cast<void*>(address), &found)) found = {};
  const uintptr_t offset = address - reinterpret_cast<uintptr_t>(found.dli_fbase);
  const Ref calls(is_watched ? PyLong_FromLongLong(i.calls.load()) : Py_NewRef(Py_None));
  if (!calls) return nullptr;
  return Py_BuildValue("(sOKzK)", i.name.c_str(), calls.get(),
                       static_cast<unsigned long long>(address), found.dli_fname,
                       static_cast<unsigned long long>(offset));
}

}  // namespace

PyObject* Observe(PyObject*, PyObject* name) {
  Operator* op = FindByName(name);
  if (!op) return nullptr;
  WatchOperator(op);
  Py_RETURN_NONE;
}

PyObject* KernelCalls(PyObject*, PyObject* name) {
  const Operator* op = FindByName(name);
  Ref list(op ? PyList_New(0) : nullptr);
  if (!list) return nullptr;
  const Reading reading;
  for (const Implementation* i : ListImplementations(op)) {
    if (i->readiness.load(std::memory_order_acquire) != Readiness::kReady) continue;
    const Ref row(Describe(*i, IsWatched(op)));
    if (!row || PyList_Append(list.get(), row.get())) return nullptr;
  }
  return list.Release();
}

}  // namespace anyop
