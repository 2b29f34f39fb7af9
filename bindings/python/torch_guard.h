// SPDX-License-Identifier: Apache-2.0
// Refuses torch tensors whose memory is not their value, or whose gradient would be lost.
#pragma once

#include <string>

#include "python.h"

namespace anyop {

// Finds what the guard reads in the loaded torch; once. False with *why set when it is not there.
bool InitTorchGuard(PyObject* torch, std::string* why);

// What holds for all tensors of one call.
struct TorchMode {
  bool records_gradients;
};
// False, with *why set, while a torch dispatch mode (FakeTensorMode and its like) is active.
bool ReadTorchMode(TorchMode* mode, std::string* why);

// True when a call may read (and write) the tensor's memory directly. Otherwise *why says why not;
// an error of Python's may be set as well.
bool TorchTensorIsPlain(PyObject* tensor, TorchMode mode, bool is_complex, std::string* why);

}  // namespace anyop
