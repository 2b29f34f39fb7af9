// SPDX-License-Identifier: Apache-2.0
// NumPy without its headers: the array's own memory (NumPy's C ABI, the same since 1.7) and three
// of its functions.
#pragma once

#include <string>

#include "frameworks/framework.h"

namespace anyop {

extern const Framework numpy_framework;

// For callers without a framework of their own. False with *why set where there is no NumPy.
bool ImportNumpy(std::string* why);

// An array over tensor's memory, which owner keeps alive. nullptr with an error raised, or *why
// set.
PyObject* NewArrayOver(const AnyopTensor& tensor, PyObject* owner, bool writeable,
                       std::string* why);

// A row's allocate, for what has no framework of its own, too.
int32_t AllocateArray(Loans* loans, AnyopTensor* tensor, PyObject** object);

}  // namespace anyop
