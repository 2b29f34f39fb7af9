// SPDX-License-Identifier: Apache-2.0
// Functions of tvm-ffi as implementations of operators: the form "tvm_ffi" of the router.
#pragma once

#include "anyop/kernel.h"
#include "call_plan.h"
#include "library.h"
#include "tvm_ffi_entry.h"

namespace anyop {
struct Implementation;
}

namespace anyop::ffi {

// What runs with it as call->context, with a reference to the function. That of a schema's entry is
// never freed: a call may be in it.
struct ForeignCall {
  const Library* library;
  const Operator* op;
  CallPlan plan;
  TVMFFIObjectHandle function = nullptr;

  ForeignCall() = default;
  ForeignCall(const ForeignCall&) = delete;
  ForeignCall& operator=(const ForeignCall&) = delete;
  ~ForeignCall() {
    if (function) library->DecRef(function);
  }
};

int32_t RunForeign(const void* args, AnyopCall* call);

// Finds a function in what Python makes of "package.module:attribute" and takes a reference to it.
// On failure false, and *why says what is missing.
using FindInPython = bool (*)(const std::string& module, const std::string& function,
                              TVMFFIObjectHandle* found, std::string* why);
void SetFindInPython(FindInPython find);

// Resolve of the form. implementation.resolve_context is the function, or nullptr: the text says
// it.
bool ResolveForeign(const Implementation& implementation, AnyopKernel* run, void** context,
                    std::string* why);

}  // namespace anyop::ffi
