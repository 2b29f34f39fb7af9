// SPDX-License-Identifier: Apache-2.0
// Counts the calls that arrive at kernels, whichever framework they come from.
//
// A kernel that is observed is replaced in its operator's route by a slot, which counts and calls
// it. Slots are never given back, so a call that is under way may use one at any time; operators
// that are not observed pay nothing.
#include "observe.h"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>

#include "anyop/anyop.h"
#include "router.h"

namespace anyop {
namespace {

constexpr size_t kSlots = 128;

struct Slot {
  AnyopKernelEntry entry;        // the kernel's own, but for run
  const AnyopKernelEntry* real;  // nullptr: the slot is free
  std::atomic<int64_t> calls{0};
};

Slot slots[kSlots];

template <size_t kSlot>
int32_t RunCounted(const void* args, AnyopCall* call) {
  slots[kSlot].calls.fetch_add(1, std::memory_order_relaxed);
  return slots[kSlot].real->run(args, call);
}

template <size_t... kSlot>
constexpr std::array<AnyopKernel, sizeof...(kSlot)> Counters(std::index_sequence<kSlot...>) {
  return {RunCounted<kSlot>...};
}

constexpr auto kCounters = Counters(std::make_index_sequence<kSlots>());

const Slot* SlotOf(const AnyopKernelEntry* entry) {
  for (const Slot& slot : slots) {
    if (&slot.entry == entry) return &slot;
  }
  return nullptr;
}

// The entry that counts in place of this one; nullptr when all slots are taken.
const AnyopKernelEntry* Counting(const AnyopKernelEntry* entry) {
  for (size_t i = 0; i < kSlots; ++i) {
    if (slots[i].real) continue;
    slots[i].entry = *entry;
    slots[i].entry.run = kCounters[i];
    slots[i].real = entry;
    return &slots[i].entry;
  }
  return nullptr;
}

Operator* Find(PyObject* name) {
  const char* text = PyUnicode_AsUTF8AndSize(name, nullptr);
  if (!text) return nullptr;
  const AnyopOperator* op = AnyopFindOperator(text);
  if (!op) PyErr_SetString(PyExc_ValueError, AnyopLastError());
  return const_cast<Operator*>(reinterpret_cast<const Operator*>(op));
}

// The row of one kernel.
PyObject* Describe(const AnyopKernelEntry* entry) {
  const Slot* slot = SlotOf(entry);
  const AnyopKernel run = slot ? slot->real->run : entry->run;
  const auto address = reinterpret_cast<uintptr_t>(run);
  Dl_info found = {};
  if (!dladdr(reinterpret_cast<void*>(address), &found)) found = {};
  const uintptr_t offset = address - reinterpret_cast<uintptr_t>(found.dli_fbase);
  const Ref calls(slot ? PyLong_FromLongLong(slot->calls.load()) : Py_NewRef(Py_None));
  if (!calls) return nullptr;
  return Py_BuildValue("(sOKzK)", entry->backend, calls.get(),
                       static_cast<unsigned long long>(address), found.dli_fname,
                       static_cast<unsigned long long>(offset));
}

}  // namespace

PyObject* Observe(PyObject*, PyObject* name) {
  Operator* op = Find(name);
  if (!op) return nullptr;
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  auto* route = new Route(*op->route.load(std::memory_order_acquire));
  for (const AnyopKernelEntry*& entry : route->entry) {
    if (!entry || SlotOf(entry)) continue;
    const AnyopKernelEntry* counting = Counting(entry);
    if (!counting) {
      delete route;
      PyErr_SetString(PyExc_RuntimeError, "observe: all 128 kernels that can be observed are");
      return nullptr;
    }
    entry = counting;
  }
  op->route.store(route, std::memory_order_release);
  Py_RETURN_NONE;
}

PyObject* KernelCalls(PyObject*, PyObject* name) {
  const Operator* op = Find(name);
  Ref list(op ? PyList_New(0) : nullptr);
  if (!list) return nullptr;
  for (const AnyopKernelEntry* entry : op->route.load(std::memory_order_acquire)->entry) {
    if (!entry) continue;
    const Ref row(Describe(entry));
    if (!row || PyList_Append(list.get(), row.get())) return nullptr;
  }
  return list.Release();
}

}  // namespace anyop
