// SPDX-License-Identifier: Apache-2.0
// NumPy without its headers: the array's own memory (NumPy's C ABI, the same since 1.7) and three
// of its functions.
#pragma once

#include <string>

#include "call.h"
#include "python.h"

namespace anyop {

// Reads NumPy's function table; once. False with *why set when this NumPy is not understood.
bool InitNumpy(std::string* why);

// Makes InitNumpy true by importing NumPy, for callers without a framework of their own.
bool ImportNumpy(std::string* why);

// Fills tensor from an ndarray; sizes and strides are copies in arena. False with *why set. With
// all_types also ml_dtypes' types that are no AnyopDtype, by their DLPack codes.
bool BorrowArray(Arena* arena, PyObject* array, bool writes, AnyopTensor* tensor, std::string* why,
                 bool all_types = false);

bool IsWriteable(PyObject* array);

// While the object that is returned lives, nobody can resize the array (or the one that it is a
// view of) out of its memory. nullptr where there is none, without an error set.
PyObject* PinArray(PyObject* array);

// An array over tensor's memory, which owner keeps alive. nullptr with an error raised, or *why
// set.
PyObject* NewArrayOver(const AnyopTensor& tensor, PyObject* owner, bool writeable,
                       std::string* why);

// A new array of tensor's dtype and shape; fills data and shape. nullptr with an error raised, or
// *why set.
PyObject* NewArray(AnyopTensor* tensor, std::string* why);

}  // namespace anyop
