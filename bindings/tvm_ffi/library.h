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
  decltype(&TVMFFITensorFromDLPackVersioned) TensorFromDLPack;
  decltype(&TVMFFIEnvGetStream) GetStream;
  decltype(&TVMFFIEnvSetStream) SetStream;
  decltype(&TVMFFIEnvGetDLPackManagedTensorAllocator) GetAllocator;
  decltype(&TVMFFIEnvSetDLPackManagedTensorAllocator) SetAllocator;
  TVMFFIObjectHandle make_array;  // the global function ffi.Array
};

// The libtvm_ffi that is loaded, else the file at path (may be nullptr). Found once, never
// unloaded. Without it nullptr, and *problem says why not: text that stays.
const Library* OpenedLibrary(const char* path, const char** problem);

// Makes operators global functions where libtvm_ffi was noted and that was not done yet.
void RegisterNoted();

// Gives callers that have no allocator of their own (NumPy arrays, C++) one for the CPU, where none
// is set yet. An allocator that a framework sets for its thread goes before it.
void InstallAllocator(const Library& library);

}  // namespace anyop::ffi
