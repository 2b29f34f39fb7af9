// SPDX-License-Identifier: Apache-2.0
// What a schema says beside the data of its table: parts of the table's metadata, which is JSON.
#pragma once

#include <string>

#include "operator/operator.h"

namespace anyop {

// What [tolerance] of the schema allows a result of this dtype on the CPU and on a device, added
// up: both may be so far from what is right. -1: nothing, the values must be equal.
double ToleranceOf(const Operator& op, int dtype, const char* device);
// Whether [test] says that the device's kernels are right for finite results alone.
bool IsFiniteAlone(const Operator& op, const char* device);
// Whether the schema states a kernel of this backend, be it in this build or not.
bool StatesBackend(const Operator& op, const std::string& backend);

}  // namespace anyop
