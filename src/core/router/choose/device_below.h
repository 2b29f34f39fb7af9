// SPDX-License-Identifier: Apache-2.0
// Tensors of a framework's own device ("anyop") are taken by the kernels of what lies below it.
#pragma once

#include "anyop/device.h"
#include "anyop/device_below.h"
#include "router/implementation.h"

namespace anyop {

struct Frame;

constexpr int kFrameworkDevice = ANYOP_DEVICE_TYPE_EXTENSION;

// Whether it was said what lies below.
bool HasDeviceBelow();
// What it is: bit DLDeviceType.
uint64_t TypesBelow();
// The nearest below a framework's device, whose facts (capability, name) are its own; of others
// themselves.
int NearestBelow(int device_type);

// Whether an implementation's kernel takes tensors of just this kind of device.
bool ServesItself(const Implementation& implementation, int device_type);

// As which kind of device an implementation runs, given tensors of this one; -1: it takes none.
int RunsAs(const Implementation& implementation, int device_type);

// The nearer comes first: by priority, then by its place among the types below.
bool IsNearer(const Implementation& a, const Implementation& b);

// Whether all that may run for an operator, given tensors of this kind of device, runs on the CPU.
bool RunsOnCpu(const Operator& op, int device_type);

// What AnyopDeviceBelow.enter does, with the failure noted in the frame.
int32_t EnterBelow(Frame* frame, int type, int index, void** stream);

// The tensors of a call, all of the framework's device, become those of what lies below.
void LowerTensors(Frame* frame, int type);

}  // namespace anyop
