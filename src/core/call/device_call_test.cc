// SPDX-License-Identifier: Apache-2.0
// Registration of devices, and the way of a call on one, shown on a device that is the host's
// memory.
#include "call/device_call.h"

#include <cstdlib>
#include <cstring>

#include "anyop/anyop.h"
#include "loader.h"
#include "tests/check.h"

namespace {

constexpr int kHere = 21;  // a device type that nothing else has
int entered, left, taken, given_back, current;
void* last_stream;
bool refuses_memory, refuses_entry;

int32_t Enter(int32_t device, AnyopDeviceScope* scope) {
  *scope = {};
  if (refuses_entry) return kAnyopDeviceError;
  ++entered;
  if (device == current) return kAnyopOk;
  *scope = {nullptr, 1, current};
  current = device;
  return kAnyopOk;
}
int32_t Leave(const AnyopDeviceScope* scope) {
  ++left;
  current = scope->reserved;
  return kAnyopOk;
}
const char* LastError() { return "the device says no"; }
int32_t AllocateOn(int32_t, void* stream, int64_t bytes, void** memory) {
  last_stream = stream;
  if (refuses_memory) return kAnyopOutOfMemory;
  ++taken;
  *memory = std::malloc(static_cast<size_t>(bytes));
  return kAnyopOk;
}
int32_t FreeOn(int32_t, void* stream, void* memory) {
  last_stream = stream;
  ++given_back;
  std::free(memory);
  return kAnyopOk;
}

AnyopDevice MakeDevice() {
  AnyopDevice device = {};
  device.size = sizeof device;
  device.abi_version = ANYOP_DEVICE_ABI_VERSION;
  device.name = "here";
  device.device_type = kHere;
  device.enter = Enter;
  device.leave = Leave;
  device.last_error = LastError;
  device.allocate_on = AllocateOn;
  device.free_on = FreeOn;
  return device;
}
const AnyopDevice here = MakeDevice();

TEST(WhatIsRefused) {
  CHECK(AnyopRegisterDevice(nullptr) == kAnyopValueError);
  AnyopDevice bad = here;
  bad.enter = nullptr;
  CHECK(AnyopRegisterDevice(&bad) == kAnyopValueError);
  bad = here;
  bad.abi_version = ANYOP_DEVICE_ABI_VERSION + 1;
  CHECK(AnyopRegisterDevice(&bad) == kAnyopValueError);
  CHECK(std::strstr(AnyopLastError(), "device here has ABI version 2, this core reads 1 to 1"));
  bad = here;
  bad.device_type = 1;
  CHECK(AnyopRegisterDevice(&bad) == kAnyopValueError);
  CHECK(std::strstr(AnyopLastError(), "device type 1, expected 2 to 31"));
  CHECK(!AnyopFindDevice(kHere) && !AnyopFindDevice(-1) && !AnyopFindDevice(99));
}

TEST(OneDeviceForAType) {
  CHECK(AnyopRegisterDevice(&here) == kAnyopOk);
  CHECK(AnyopFindDevice(kHere) == &here);
  CHECK(AnyopRegisterDevice(&here) == kAnyopOk);
  static AnyopDevice other = MakeDevice();
  other.name = "other";
  CHECK(AnyopRegisterDevice(&other) == kAnyopValueError);
  CHECK(std::strstr(AnyopLastError(), "which device here has already"));
  CHECK(AnyopFindDevice(kHere) == &here);
}

// What RunOnDevice does around a kernel.
int32_t Run(AnyopKernel kernel, int device, char* error) {
  const AnyopOperator* op = AnyopFindOperator("add");
  anyop::Frame frame(reinterpret_cast<const anyop::Operator*>(op));
  AnyopCall call = {};
  call.size = sizeof call;
  call.device_type = kHere;
  call.device_id = device;
  call.stream = &call;
  AnyopTensor there = {};
  there.device_type = call.device_type;
  const int32_t status = anyop::RunOnDevice(&frame, there, kernel, &call);
  CHECK(status == kAnyopOk || frame.error[0]);
  std::strcpy(error, frame.error);
  return status;
}

int32_t TakesTwice(const void*, AnyopCall* call) {
  CHECK(current == call->device_id);
  void* one = call->workspace(call, 1000);
  void* two = call->workspace(call, 0);
  if (!one || !two) return kAnyopOutOfMemory;
  CHECK(one != two);
  CHECK(given_back == taken - 2);
  return kAnyopOk;
}
int32_t Fails(const void*, AnyopCall* call) {
  call->workspace(call, 8);
  return call->fail(call, kAnyopValueError, "no good");
}

TEST(AKernelHasItsDevice) {
  char error[1024];
  entered = left = taken = given_back = 0;
  CHECK(Run(TakesTwice, 3, error) == kAnyopOk);
  CHECK(entered == 1 && left == 1 && current == 0 && taken == 2 && given_back == 2);
  CHECK(last_stream);
  CHECK(Run(TakesTwice, 0, error) == kAnyopOk);  // current already: nothing to go back to
  CHECK(entered == 2 && left == 1 && given_back == 4);
}

TEST(ErrorsLeaveNothingBehind) {
  char error[1024];
  entered = left = taken = given_back = 0;
  CHECK(Run(Fails, 2, error) == kAnyopValueError);
  CHECK(!std::strcmp(error, "add: no good") && left == 1 && taken == 1 && given_back == 1);
  refuses_memory = true;
  CHECK(Run(TakesTwice, 2, error) == kAnyopOutOfMemory);
  CHECK(std::strstr(error, "bytes of scratch memory: the device says no"));
  CHECK(current == 0 && left == 2);
  refuses_memory = false;
  refuses_entry = true;
  CHECK(Run(TakesTwice, 2, error) == kAnyopDeviceError);
  CHECK(!std::strcmp(error, "add: the device says no") && left == 2);
  refuses_entry = false;
}

}  // namespace
