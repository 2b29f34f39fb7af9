// SPDX-License-Identifier: Apache-2.0
// Every operator of the registry, now and later, as torch.ops.<namespace>.<operator>.
#pragma once

#include "../torch_glue/torch_glue.h"

extern "C" {

// Throws a C++ exception that becomes the status's kind of error where the call came from.
// kAnyopPending: the error that Python code below raised, else one with this message.
typedef void (*AnyopTorchRaise)(int32_t status, const char* message);

// Gives an overload that records its kernel, before its first call. Not 0 when it could not, with
// its error kept as that of Python code.
typedef int32_t (*AnyopTorchRecorder)(const char* operator_name, int32_t destination);

// Registers with the torch that is loaded; the second time nothing is done. glue and raise may be
// NULL: the shim then does the glue's work, and every error is torch's RuntimeError. A glue needs a
// recorder. NULL, or the reason why it cannot be.
__attribute__((visibility("default"))) const char* AnyopRegisterTorch(const AnyopTorchGlue* glue,
                                                                      AnyopTorchRaise raise,
                                                                      AnyopTorchRecorder recorder);

// Opens a glue library and checks that it is for this torch and this anyop. It is never closed.
// NULL with *why set.
__attribute__((visibility("default"))) const AnyopTorchGlue* AnyopOpenTorchGlue(
    const char* path, const char* torch_version, const char** why);

// Why this operator was not registered; NULL when it was.
__attribute__((visibility("default"))) const char* AnyopTorchProblem(const char* name);
}
