// SPDX-License-Identifier: Apache-2.0
// The OpenCL platform of the process: its library, its devices, one context for all of them, and
// what every function begins with.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "anyop/device.h"
#include "last_error.h"
#include "opencl_api.h"

namespace anyop::opencl {

struct Stream;

struct Device {
  Handle id = nullptr;
  std::string name, driver, version;
  uint64_t total_bytes = 0, largest_bytes = 0, local_bytes = 0;
  uint32_t units = 0;
  bool has_double = false;
  int32_t nvidia_major = 0;  // of the compute capability; 0: not NVIDIA's
  std::atomic<int64_t> used_bytes{0};
  std::mutex mutex;  // of what follows
  std::vector<std::unique_ptr<Stream>> streams;
  Stream* plain = nullptr;   // the default stream
  Handle service = nullptr;  // a queue for mapping, which nothing holds up
};

struct Runtime {
  Api cl{};
  std::string platform;  // with its version
  Handle context = nullptr;
  std::vector<std::unique_ptr<Device>> devices;
  std::string problem;     // why there is none; empty: there is
  bool lacks_all = false;  // a library without a platform or device: 0 devices, no error
};

// Opened at the first call; never closed.
Runtime& TheRuntime();

// Whether this device can be used, from this process.
int32_t CheckDevice(int32_t device, Device** found = nullptr);
int32_t CheckBytes(const char* what, int64_t bytes);

// kAnyopOk, or the failure noted with OpenCL's name for it.
int32_t Check(Code code, const char* doing);

}  // namespace anyop::opencl
