// SPDX-License-Identifier: Apache-2.0
// CuPy's current stream and its arrays as results. CuPy has no DLPack exchange functions (14.2), so
// this asks its Python functions.
#pragma once

#include "anyop/kernel.h"
#include "python.h"

namespace anyop {

// The stream that is current for the device in this thread. False with an error set.
bool CupyStream(int32_t device_id, void** stream);

// A new array by CuPy's allocator; sets tensor's data. nullptr with an error set.
PyObject* NewCupyArray(AnyopTensor* tensor);

}  // namespace anyop
