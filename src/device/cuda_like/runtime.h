// SPDX-License-Identifier: Apache-2.0
// The one runtime of the process, and what every function begins with.
#pragma once

#include <atomic>

#include "anyop/device.h"
#include "fork.h"
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
  bool handles_know_device = false;            // of streams and events: none need be current
  std::atomic<bool> has_stream_memory{false};  // allocation in the order of a stream
};

// Says which runtime this process uses; nullptr where that was said already.
Runtime* ChooseRuntime(const Row& row, const std::string& name);
extern Runtime* chosen_runtime;               // never destroyed: threads may outlive main
extern std::atomic<uint32_t> usable_devices;  // of a runtime that is open
Runtime& OpenRuntime();
// Chosen by now; its library is opened at the first call, and never closed.
inline Runtime& TheRuntime() {
  return usable_devices.load(std::memory_order_acquire) ? *chosen_runtime : OpenRuntime();
}
inline const Api& TheApi() { return TheRuntime().library.api; }

int32_t OpenOrRefuse(int32_t device);
// Whether this device can be used, from this process.
inline int32_t CheckDevice(int32_t device) {
  const uint32_t usable = usable_devices.load(std::memory_order_acquire);
  return __builtin_expect(static_cast<uint32_t>(device) < usable && !Forked(), 1)
             ? int32_t{kAnyopOk}
             : OpenOrRefuse(device);
}
int32_t CheckBytes(int64_t bytes);

// kAnyopOk, or the failure noted with the runtime's own text, which it forgets then.
int32_t NoteFailure(Code code, const char* doing);
inline int32_t Check(Code code, const char* doing) {
  return __builtin_expect(code == 0, 1) ? int32_t{kAnyopOk} : NoteFailure(code, doing);
}

inline int32_t Enter(int32_t device, AnyopDeviceScope* scope) {
  *scope = {};
  if (int32_t status = CheckDevice(device)) return status;
  const Api& api = TheApi();
  int now = -1;
  if (int32_t status = Check(api.GetDevice(&now), "asking for the device")) return status;
  if (__builtin_expect(now == device, 1)) return kAnyopOk;
  if (int32_t status = Check(api.SetDevice(device), "setting the device")) return status;
  *scope = {nullptr, 1, now};
  return kAnyopOk;
}
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
