// SPDX-License-Identifier: Apache-2.0
// The functions of libtvm_ffi that are used here, taken at run time from the one copy a process may
// have.
#pragma once

#include <tvm/ffi/c_api.h>
#include <tvm/ffi/extra/c_env_api.h>

namespace anyop::ffi {

struct Library {
  decltype(&TVMFFIGetVersion) GetVersion;
  decltype(&TVMFFIFunctionCreate) FunctionCreate;
  decltype(&TVMFFIFunctionSetGlobal) FunctionSetGlobal;
  decltype(&TVMFFIFunctionGetGlobal) FunctionGetGlobal;
  decltype(&TVMFFIFunctionCall) FunctionCall;
  decltype(&TVMFFIErrorSetRaisedFromCStr) SetError;
  decltype(&TVMFFIErrorMoveFromRaised) TakeError;
  decltype(&TVMFFIObjectIncRef) IncRef;
  decltype(&TVMFFIObjectDecRef) DecRef;
  decltype(&TVMFFIGetTypeInfo) GetTypeInfo;
  decltype(&TVMFFIEnvTensorAlloc) TensorAlloc;
  decltype(&TVMFFIEnvGetStream) GetStream;
  decltype(&TVMFFIEnvGetDLPackManagedTensorAllocator) GetAllocator;
  decltype(&TVMFFIEnvSetDLPackManagedTensorAllocator) SetAllocator;
  TVMFFIObjectHandle make_array;  // the global function ffi.Array
};

// Fills *library from the libtvm_ffi that is loaded, else from the file at path (may be nullptr).
// Never unloads it. Returns nullptr, or why not: text that stays.
const char* OpenLibrary(const char* path, Library* library);

// Gives callers that have no allocator of their own (NumPy arrays, C++) one for the CPU, where none
// is set yet. An allocator that a framework sets for its thread goes before it.
void InstallAllocator(const Library& library);

}  // namespace anyop::ffi
