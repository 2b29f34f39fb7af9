// SPDX-License-Identifier: Apache-2.0
// CUDA's errors as AnyopStatus with a text, and a device made current for a while.
#pragma once

#include "anyop/cuda/error.h"
#include "anyop/device.h"
#include "last_error.h"

namespace anyop::cuda {

// kAnyopOk, or the status of an error whose text LastDeviceError() then is.
int32_t Check(cudaError_t error, const char* doing);

int32_t Enter(int32_t device, AnyopDeviceScope* scope);
int32_t Leave(const AnyopDeviceScope* scope);

// Runs body, which returns a cudaError_t, with a device current.
template <typename Body>
int32_t On(int32_t device, const char* doing, const Body& body) {
  AnyopDeviceScope scope;
  if (int32_t status = Enter(device, &scope)) return status;
  const int32_t status = Check(body(), doing);
  if (!scope.changed) return status;
  const int32_t left = Leave(&scope);
  return status ? status : left;
}

}  // namespace anyop::cuda
