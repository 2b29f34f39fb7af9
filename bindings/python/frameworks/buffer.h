// SPDX-License-Identifier: Apache-2.0
// What has nothing but Python's buffer protocol: bytearray, memoryview, array.array, ctypes.
#pragma once

#include "frameworks/framework.h"

namespace anyop {

// Of an object that no framework's row knows.
Found FindBuffer(PyObject* object);

}  // namespace anyop
