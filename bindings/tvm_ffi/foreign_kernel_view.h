// SPDX-License-Identifier: Apache-2.0
// Tensors of other shapes over the same memory: rows(x) and flat(x).
#pragma once

#include "anyop/kernel.h"

namespace anyop::ffi {

bool IsEmpty(const AnyopTensor& tensor);

// All dimensions as one; with keep_last all but the last. sizes: room for 4. False when no stride
// does that, or without a last dimension.
bool JoinDimensions(const AnyopTensor& tensor, bool keep_last, int64_t* sizes, AnyopTensor* view);

}  // namespace anyop::ffi
