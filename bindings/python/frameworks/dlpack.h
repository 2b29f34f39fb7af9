// SPDX-License-Identifier: Apache-2.0
// DLPack: what has a capsule for its memory, and what its type's exchange functions say.
#pragma once

#include "frameworks/framework.h"

namespace anyop {

// Objects with __dlpack__, and types with exchange functions that no other row knows.
extern const Framework dlpack_framework, exchange_framework;

// Of an object that no framework's row knows.
Found FindDlpack(PyObject* object);

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

}  // namespace anyop
