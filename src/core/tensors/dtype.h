// SPDX-License-Identifier: Apache-2.0
// Names, sizes and promotion of element types.
#pragma once

#include <string>

#include "anyop/kernel.h"

namespace anyop {

// "float32"; "an unknown dtype" for what has no AnyopDtype.
const char* DtypeName(int dtype);

// The AnyopDtype of a name ("float32", "torch.float32" and "float8_e4m3fn" alike), kAnyopNoDtype
// otherwise.
AnyopDtype DtypeFromName(const char* name);

struct DlpackType {
  uint8_t code;
  uint8_t bits;
};
DlpackType DlpackTypeOf(int dtype);

// torch's promotion between two tensors of at least one dimension; kAnyopNoDtype where torch
// refuses.
AnyopDtype Promote(int a, int b);

// "float32, float16" for a bit mask.
std::string DtypeSetText(uint64_t set);

}  // namespace anyop
