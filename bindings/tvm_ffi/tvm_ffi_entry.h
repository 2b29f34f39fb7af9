// SPDX-License-Identifier: Apache-2.0
// Every operator as a tvm-ffi global function.
#pragma once

#include "anyop/anyop.h"

extern "C" {
// Makes every operator, now and in future, a global function of tvm-ffi ("anyop.rms_norm"), with
// the libtvm_ffi that the process has loaded already, else the one at path. Returns NULL, or why
// not (static text). Once is enough.
ANYOP_API const char* AnyopRegisterTvmFfi(const char* path);
}
