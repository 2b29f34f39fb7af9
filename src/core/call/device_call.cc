// SPDX-License-Identifier: Apache-2.0
// The device of a call is entered and left, its scratch memory taken and given back; nothing waits
// for the device.
#include "call/device_call.h"

#include "call/check_call.h"
#include "loader.h"
#include "router/choose/device_below.h"
#include "router/rules/call_condition.h"

namespace anyop {
namespace {

struct Block {
  Block* next;
  void* memory;
};

// What call->internal is while such a kernel runs.
struct DeviceCall : InCall {
  const AnyopDevice*
      device;  // nullptr: none is registered; kernels without scratch run all the same
  Block* blocks = nullptr;
};

DeviceCall* Self(AnyopCall* call) {
  return static_cast<DeviceCall*>(static_cast<InCall*>(call->internal));
}

int32_t FailOnDevice(AnyopCall* call, int32_t status, const char* message) {
  return Fail(Self(call)->frame_, status, "%s", message);
}

// nullptr with an error noted when there is none.
void* TakeOnDevice(AnyopCall* call, int64_t bytes) {
  DeviceCall* self = Self(call);
  const AnyopDevice* device = self->device;
  if (!device || !HasFunction(device, &AnyopDevice::allocate_on) ||
      !HasFunction(device, &AnyopDevice::free_on)) {
    Fail(self->frame_, kAnyopOutOfMemory, "no scratch memory is known on %s",
         DeviceName(call->device_type).c_str());
    return nullptr;
  }
  void* memory = nullptr;
  // A kernel that asks for nothing gets a place all the same, as on the CPU.
  const int64_t some = bytes == 0 ? 1 : bytes;
  try {
    Block* block = self->frame_->arena.Take<Block>(1);
    if (device->allocate_on(call->device_id, call->stream, some, &memory)) {
      Fail(self->frame_, kAnyopOutOfMemory, "%lld bytes of scratch memory: %s", (long long)bytes,
           device->last_error());
      return nullptr;
    }
    *block = {self->blocks, memory};
    self->blocks = block;
  } catch (const std::bad_alloc&) {
    Fail(self->frame_, kAnyopOutOfMemory, "out of memory");
  }
  return memory;
}

// In the order of the stream: behind what the kernel started.
int32_t GiveBack(const DeviceCall& self, const AnyopCall& call) {
  int32_t status = kAnyopOk;
  for (Block* block = self.blocks; block; block = block->next) {
    const int32_t freed = self.device->free_on(call.device_id, call.stream, block->memory);
    if (freed && !status) status = freed;
  }
  return status;
}

int32_t RunEntered(DeviceCall* self, AnyopKernel kernel, AnyopCall* call) {
  const int32_t status = __builtin_expect(ChecksCalls(), 0)
                             ? RunChecked(self->frame_, self->device, kernel, call)
                             : kernel(self->frame_->args, call);
  const int32_t back = GiveBack(*self, *call);
  return status || !back ? status : Fail(self->frame_, back, "%s", self->device->last_error());
}

int32_t RunUnlocked(DeviceCall* self, AnyopKernel kernel, AnyopCall* call) {
  if (!self->device) return kernel(self->frame_->args, call);
  AnyopDeviceScope scope;
  if (int32_t status = self->device->enter(call->device_id, &scope))
    return Fail(self->frame_, status, "%s", self->device->last_error());
  const int32_t status = RunEntered(self, kernel, call);
  if (!scope.changed) return status;
  const int32_t left = self->device->leave(&scope);
  return status || !left ? status : Fail(self->frame_, left, "%s", self->device->last_error());
}

// The CPU's kernel on memory of a framework's device: behind what its stream holds, and without the
// caller's lock, which that may need.
int32_t RunOnCpu(Frame* frame, int32_t index, AnyopKernel kernel, AnyopCall* call) {
  call->device_id = 0;
  if (frame->before_kernel) frame->before_kernel(frame);
  int32_t status;
  try {
    status = EnterBelow(frame, 1, index, &call->stream);
    if (status == kAnyopOk) status = kernel(frame->args, call);
  } catch (...) {
    if (frame->before_kernel) frame->after_kernel(frame);
    throw;
  }
  if (frame->before_kernel) frame->after_kernel(frame);
  return status;
}

}  // namespace

int32_t RunOnDevice(Frame* frame, const AnyopTensor& first, AnyopKernel kernel, AnyopCall* call) {
  if (first.device_type == kFrameworkDevice && HasDeviceBelow()) {
    const int32_t index = first.device_id;
    LowerTensors(frame, call->device_type);
    if (call->device_type == 1) return RunOnCpu(frame, index, kernel, call);
    if (int32_t status = EnterBelow(frame, call->device_type, index, &call->stream)) return status;
  }
  DeviceCall self{{frame}, FindDevice(call->device_type)};
  call->workspace = TakeOnDevice;
  call->fail = FailOnDevice;
  call->internal = static_cast<InCall*>(&self);
  // A launch waits when the device's queue is full, which may be for long: never with the lock.
  if (frame->before_kernel) frame->before_kernel(frame);
  const int32_t status = RunUnlocked(&self, kernel, call);
  if (frame->before_kernel) frame->after_kernel(frame);
  return status;
}

}  // namespace anyop
