// SPDX-License-Identifier: Apache-2.0
// Which kernel runs: per operator one pointer to its current route, read by one atomic load in a
// call.
#pragma once

#include "operator.h"

namespace anyop {

constexpr int kMaxDeviceTypes = 32;

// Never changed once published, never freed: a call may still read an old one.
struct Route {
  const AnyopKernelEntry* entry[kMaxDeviceTypes];  // nullptr: no kernel for this kind of device
};

// The route by priority alone: per kind of device the entry with the highest one.
void PublishDefaultRoute(Operator* op);

inline AnyopKernel FindKernel(const Operator* op, int device_type) {
  const Route* route = op->route.load(std::memory_order_acquire);
  if (device_type < 0 || device_type >= kMaxDeviceTypes || !route->entry[device_type])
    return nullptr;
  return route->entry[device_type]->run;
}

// The i-th kernel entry of a table, whatever size its records have.
inline const AnyopKernelEntry* KernelEntry(const AnyopOp* table, uint32_t i) {
  return reinterpret_cast<const AnyopKernelEntry*>(reinterpret_cast<const char*>(table->kernels) +
                                                   size_t{i} * table->kernel_size);
}

}  // namespace anyop
