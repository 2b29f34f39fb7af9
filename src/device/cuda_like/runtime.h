// SPDX-License-Identifier: Apache-2.0
// The one runtime of the process, and what every function begins with.
#pragma once

#include <atomic>

#include "anyop/device.h"
#include "last_error.h"
#include "library.h"

namespace anyop::cuda_like {

constexpr int32_t kMaxDevices = 64;

struct Runtime {
  Row row;
  std::string name;  // of the device, as it was asked for
  Library library;
  std::string problem;                         // why it cannot be used; empty: it can
  int count = 0;                               // devices
  std::atomic<bool> has_stream_memory{false};  // allocation in the order of a stream
};

// Says which runtime this process uses; nullptr where that was said already.
Runtime* ChooseRuntime(const Row& row, const std::string& name);
// Chosen by now; its library is opened at the first call, and never closed.
Runtime& TheRuntime();
inline const Api& TheApi() { return TheRuntime().library.api; }

// Whether this device can be used, from this process.
int32_t CheckDevice(int32_t device);
int32_t CheckBytes(int64_t bytes);

// kAnyopOk, or the failure noted with the runtime's own text, which it forgets then.
int32_t Check(Code code, const char* doing);

int32_t Enter(int32_t device, AnyopDeviceScope* scope);
int32_t Leave(const AnyopDeviceScope* scope);

// Runs body, which returns a Code, with a device current.
template <typename Body>
int32_t On(int32_t device, const char* doing, const Body& body) {
  struct Current {
    AnyopDeviceScope scope = {};
    ~Current() {
      if (scope.changed) TheApi().SetDevice(scope.reserved);
    }
  } current;
  if (int32_t status = Enter(device, &current.scope)) return status;
  return Check(body(), doing);
}

}  // namespace anyop::cuda_like
