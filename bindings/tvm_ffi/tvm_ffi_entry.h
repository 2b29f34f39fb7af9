// SPDX-License-Identifier: Apache-2.0
// Every operator as a global function of tvm-ffi; functions of tvm-ffi as implementations.
#pragma once

#include <string>

#include "anyop/anyop.h"

extern "C" {
// Makes every operator, now and in future, a global function of tvm-ffi ("anyop.rms_norm"), with
// the libtvm_ffi that the process has loaded already, else the one at path. Returns NULL, or why
// not (static text). Once is enough.
ANYOP_API const char* AnyopRegisterTvmFfi(const char* path);

// Notes where libtvm_ffi lies, text that stays. The first implementation that needs it then does
// what AnyopRegisterTvmFfi does.
ANYOP_API void AnyopNoteTvmFfi(const char* path);

// Finds a function in what Python makes of "package.module:attribute"; a tvm-ffi object, with a
// reference for the caller by AnyopRetainTvmFfi. On failure nullptr, and *why says what is missing.
typedef void* (*AnyopFindInPython)(const std::string& module, const std::string& function,
                                   std::string* why);
ANYOP_API void AnyopSetFindInPython(AnyopFindInPython find);

// Another reference to an object of tvm-ffi.
ANYOP_API void AnyopRetainTvmFfi(void* object);

// Raises in Python what a kernel in Python raised in this thread, where the message is the text of
// it; false where there is none, and the message is the error.
typedef bool (*AnyopRaiseInPython)(const char* message);
ANYOP_API void AnyopSetRaiseInPython(AnyopRaiseInPython raise);

// Adds an implementation that calls a function of tvm-ffi as `text` says (call, module, library and
// needs, JSON). function: it, a tvm-ffi object of which a reference is taken until the
// implementation is removed; NULL: found by the text when it is first needed. run and context of
// `described` are not read.
ANYOP_API int32_t AnyopAddTvmFfiCall(const AnyopOperator* op, const AnyopImplementation* described,
                                     const char* text, void* function);
}
