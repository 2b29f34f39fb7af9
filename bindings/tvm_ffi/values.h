// SPDX-License-Identifier: Apache-2.0
// From values of tvm-ffi to the arguments of a frame.
#pragma once

#include "call/call.h"
#include "library.h"

namespace anyop::ffi {

// A value with references to references resolved.
TVMFFIAny Resolve(const TVMFFIAny& value);

// The tensor of a value, in place; nullptr when it is none.
const DLTensor* TensorOf(const TVMFFIAny& value);

// Writes one given argument (not None) into the frame. On failure the error is noted there.
int32_t SetArgument(const Library& library, Frame* frame, uint32_t index, const TVMFFIAny& value);

}  // namespace anyop::ffi
