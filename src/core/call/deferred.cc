// SPDX-License-Identifier: Apache-2.0
// What runs, as far as it is known when results would be made.
#include "call/deferred.h"

#include "call/keep_in_place.h"
#include "router/choose/device_below.h"

namespace anyop {

std::atomic<AnyopKernel> kernel_of_plans{nullptr};

void SetKernelOfPlans(AnyopKernel kernel) {
  kernel_of_plans.store(kernel, std::memory_order_relaxed);
}

bool Defer(Frame* frame, uint32_t param, int device_type) {
  const Operator& op = *frame->op;
  if (device_type == kFrameworkDevice || static_cast<uint32_t>(device_type) >= kMaxDeviceTypes)
    return false;  // torch's tensors are another device's there
  const AnyopKernel run = op.shortcut.load(std::memory_order_acquire)->ready[device_type].run;
  if (run && run != kernel_of_plans.load(std::memory_order_relaxed)) return false;
  frame->deferred |= uint64_t{1} << (param - op.num_inputs);
  return true;
}

int32_t Prepare(Frame* frame, const Ready& ready, bool is_long, bool lends, bool memory) {
  const bool runs_plan = ready.run == kernel_of_plans.load(std::memory_order_relaxed);
  if (int32_t status = runs_plan ? kAnyopOk : MakeDeferred(frame)) return status;
  // A plan reads torch's tensors themselves, as torch does.
  const bool reads_torchs = runs_plan && frame->torch_input && !lends;
  if (is_long || (ready.context && !reads_torchs)) KeepInPlace(frame, memory);
  return kAnyopOk;
}

int32_t MakeDeferred(Frame* frame) {
  for (; frame->deferred; frame->deferred &= frame->deferred - 1) {
    const auto o = static_cast<uint32_t>(__builtin_ctzll(frame->deferred));
    AnyopTensor* const tensor = &frame->tensors[frame->op->num_inputs + o];
    if (int32_t status = frame->allocate(frame, o, tensor)) return status;
  }
  return kAnyopOk;
}

int32_t PrepareForAnother(AnyopCall* call) {
  Frame* const frame = FrameOf(*call);
  if (int32_t status = MakeDeferred(frame)) return status;
  KeepInPlace(frame, call->device_type == 1);
  return kAnyopOk;
}

}  // namespace anyop
