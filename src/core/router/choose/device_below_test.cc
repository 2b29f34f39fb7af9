// SPDX-License-Identifier: Apache-2.0
// A framework's device over a chip of its own type whose memory the CPU reads: whose kernels run,
// in what order, as which device, and what rules of each device concern.
#include "router/choose/device_below.h"

#include <cstdio>
#include <cstring>
#include <fstream>

#include "anyop/anyop.h"
#include "anyop/aten_route.h"
#include "anyop/device_below.h"
#include "router/numbered_kernels.h"
#include "tests/check.h"

namespace {

constexpr int kChip = 21;
int32_t entered_type, entered_index, seen_type, seen_id;
const void* seen_stream;
bool refuses;

int32_t Enter(int32_t type, int32_t index, void** stream, char* error, int64_t error_bytes) {
  entered_type = type;
  entered_index = index;
  *stream = &seen_stream;
  if (!refuses) return kAnyopOk;
  std::snprintf(error, static_cast<size_t>(error_bytes), "the stream is lost");
  return kAnyopDeviceError;
}
const AnyopDeviceBelow below = {sizeof below, {kChip, 1}, 0, Enter};

template <int kNumber>
int32_t Watched(const void* raw, AnyopCall* call) {
  const auto& x = *static_cast<const which::Args*>(raw)->x;
  seen_type = x.device_type == call->device_type ? x.device_type : -1;
  seen_id = x.device_id == call->device_id ? x.device_id : -1;
  seen_stream = call->stream;
  return which::Kernel<kNumber>(raw, call);
}

struct There : which::Caller {
  explicit There(int64_t size = 4) : Caller(size) {
    x.device_type = out.device_type = anyop::kFrameworkDevice;
    x.device_id = out.device_id = 1;
  }
};

int32_t Register(const char* backend, int priority, AnyopKernel run, int device) {
  AnyopImplementation made = {};
  made.size = sizeof made;
  made.backend = backend;
  made.run = run;
  made.priority = priority;
  made.device_type = device;
  return AnyopRegisterImplementation(which::Operator(), &made);
}

int32_t Load(const char* text) {
  const std::string path = "device_below_test.routes";
  std::ofstream(path) << text;
  const int32_t status = AnyopLoadRoutes(path.c_str());
  std::remove(path.c_str());
  return status;
}

bool Has(const std::string& text, const char* part) { return text.find(part) != text.npos; }

TEST(BeforeItIsSaidNobodyTakesTheDevice) {
  CHECK_EQ(There().Run(), -kAnyopNotImplemented);
  CHECK(Has(AnyopLastError(), "test.which: has no kernel for anyop ("));
  CHECK(Has(AnyopLastError(), "cpu serves cpu, and the tensors are on anyop"));
}

TEST(WhatIsRefused) {
  CHECK_EQ(AnyopSetDeviceBelow(nullptr), int{kAnyopValueError});
  constexpr uint32_t kSize = sizeof below;
  const AnyopDeviceBelow all_bad[] = {{8, {1, 0}, 0, Enter},
                                      {kSize, {0, 0}, 0, Enter},
                                      {kSize, {1, 99}, 0, Enter},
                                      {kSize, {1, 0}, 0, nullptr}};
  for (const AnyopDeviceBelow& bad : all_bad)
    CHECK_EQ(AnyopSetDeviceBelow(&bad), int{kAnyopValueError});
  CHECK_EQ(AnyopSetDeviceBelow(&below), int{kAnyopOk});
  CHECK_EQ(AnyopSetDeviceBelow(&below), int{kAnyopOk});
  const AnyopDeviceBelow other = below;
  CHECK_EQ(AnyopSetDeviceBelow(&other), int{kAnyopValueError});
  CHECK(Has(AnyopLastError(), "it was said before"));
}

TEST(TheCpusKernelsRunOnMemoryThatItReads) {
  CHECK_EQ(There().Run(), 1);
  CHECK(entered_type == 1 && entered_index == 1);
  CHECK_EQ(There(1000).Run(), 2);  // chosen by its condition, as on the CPU
  CHECK(Has(There().Explain(), "\"device\":\"anyop:1\",\"chosen\":\"cpu\""));
  CHECK(AnyopHasKernel(which::Operator(), anyop::kFrameworkDevice));
  CHECK_EQ(Register("cpu2", 1, Watched<5>, 1), int{kAnyopOk});
  CHECK_EQ(There().Run(), 5);
  CHECK(seen_type == 1 && seen_id == 0);
  refuses = true;
  CHECK_EQ(There().Run(), -kAnyopDeviceError);
  CHECK(Has(AnyopLastError(), "test.which: the stream is lost"));
  refuses = false;
  There mixed;
  mixed.out.device_type = 1;
  CHECK_EQ(mixed.Run(), -kAnyopValueError);
  CHECK(Has(AnyopLastError(), "out is on device cpu:1, expected anyop:1 as the tensors before it"));
}

TEST(ItsOwnKernelsComeFirst) {
  CHECK_EQ(Register("chip", 1, Watched<6>, kChip), int{kAnyopOk});  // behind cpu2 by its coming
  CHECK_EQ(There().Run(), 6);
  CHECK(seen_type == kChip && seen_id == 1 && seen_stream == &seen_stream);
  CHECK(entered_type == kChip && entered_index == 1);
  CHECK_EQ(There().Run("cpu2"), 5);
  CHECK(seen_type == 1 && seen_id == 0);
  CHECK_EQ(which::Caller().Run(), 5);  // the CPU's own tensors
  CHECK_EQ(AnyopRemoveImplementation(which::Operator(), "cpu2"), int{kAnyopOk});
}

TEST(RulesOfTheDeviceAndOfWhatIsBelow) {
  CHECK_EQ(Load("[when device=anyop]\ntest.which = cpu\n"), int{kAnyopOk});
  CHECK_EQ(There().Run(), 1);
  CHECK_EQ(Load("[when device=cpu]\ntest.which = cpu_long, cpu\n"), int{kAnyopOk});
  CHECK_EQ(There(1000).Run(), 2);
  CHECK_EQ(Load("[when device!=cpu]\ntest.which = cpu\n"), int{kAnyopOk});
  CHECK_EQ(There().Run(), 6);
  CHECK_EQ(Load("[when device!=anyop]\ntest.which = cpu\n"), int{kAnyopOk});
  CHECK_EQ(There().Run(), 6);
  CHECK_EQ(AnyopLoadRoutes(nullptr), int{kAnyopOk});
  CHECK_EQ(AnyopRemoveImplementation(which::Operator(), "chip"), int{kAnyopOk});
  CHECK_EQ(There().Run(), 1);
}

}  // namespace
