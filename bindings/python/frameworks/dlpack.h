// SPDX-License-Identifier: Apache-2.0
// DLPack: what has a capsule for its memory, and what its type's exchange functions say.
#pragma once

#include <cstdlib>
#include <cstring>

#include "frameworks/framework.h"

namespace anyop {

// Objects with __dlpack__, and types with exchange functions that no other row knows.
extern const Framework dlpack_framework, exchange_framework;

// The exchange functions of a type; nullptr where it has none.
const DLPackExchangeAPI* ExchangeApi(PyTypeObject* type);

// What rows with exchange functions have in common.
void HoldByExchange(Loans* loans, const Source* source, PyObject* object);
int32_t AllocateByExchange(Loans* loans, AnyopTensor* tensor, PyObject** object);
bool StreamByExchange(const Source* source, int32_t device_type, int32_t device_id, void** stream);
// False with an error set or not: it has no plain memory.
inline bool ViewByExchange(const Source* source, PyObject* object, AnyopTensor* tensor) {
  return source->api->dltensor_from_py_object_no_sync(object,
                                                      reinterpret_cast<DLTensor*>(tensor)) == 0;
}

// Views object by its __dlpack__, in the newest form that it knows. stream may be nullptr.
Way ViewCapsule(Loans* loans, PyObject* object, PyObject* stream, bool writes, AnyopTensor* tensor);

// Whether the memory must not be written, as far as the capsule says. The old form cannot say it.
bool IsReadOnlyCapsule(PyObject* capsule);

// Memory given on: a managed tensor with sizes of its own behind it, which its deleter frees by
// std::free. nullptr with an error set.
template <typename Managed>
Managed* NewManagedOf(const AnyopTensor& view, void* context, void (*deleter)(Managed*)) {
  const auto sizes_bytes = static_cast<size_t>(view.ndim) * sizeof(int64_t);
  auto* managed = static_cast<Managed*>(std::malloc(sizeof(Managed) + 2 * sizes_bytes));
  if (!managed) return PyErr_NoMemory(), nullptr;
  *managed = {};
  std::memcpy(&managed->dl_tensor, &view, sizeof view);
  managed->dl_tensor.shape = reinterpret_cast<int64_t*>(managed + 1);
  managed->dl_tensor.strides = managed->dl_tensor.shape + view.ndim;
  if (view.ndim) {
    std::memcpy(managed->dl_tensor.shape, view.shape, sizes_bytes);
    std::memcpy(managed->dl_tensor.strides, view.strides, sizes_bytes);
  }
  managed->manager_ctx = context;
  managed->deleter = deleter;
  return managed;
}

// The capsule that owns it.
template <typename Managed>
PyObject* NewCapsuleOf(Managed* managed, const char* name) {
  PyObject* capsule = PyCapsule_New(managed, name, [](PyObject* capsule) {
    const char* now = PyCapsule_GetName(capsule);
    if (!now || std::strncmp(now, "dltensor", 8) != 0) return;  // taken over
    auto* held = static_cast<Managed*>(PyCapsule_GetPointer(capsule, now));
    held->deleter(held);
  });
  if (!capsule) managed->deleter(managed);
  return capsule;
}

}  // namespace anyop
