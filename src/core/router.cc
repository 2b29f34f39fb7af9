// SPDX-License-Identifier: Apache-2.0
// Builds the default route of an operator.
#include "router.h"

namespace anyop {

void PublishDefaultRoute(Operator* op) {
  auto* route = new Route{};
  for (uint32_t i = 0; i < op->table->num_kernels; ++i) {
    const AnyopKernelEntry* entry = KernelEntry(op->table, i);
    if (entry->device_type < 0 || entry->device_type >= kMaxDeviceTypes || !entry->run) continue;
    const AnyopKernelEntry*& chosen = route->entry[entry->device_type];
    if (!chosen || entry->priority > chosen->priority) chosen = entry;
  }
  op->route.store(route, std::memory_order_release);
}

}  // namespace anyop
