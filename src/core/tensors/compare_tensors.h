// SPDX-License-Identifier: Apache-2.0
// Two tensors of the host, compared as the standard tests compare.
#pragma once

#include <string>

#include "anyop/kernel.h"
#include "operator/operator.h"

namespace anyop {

// What [tolerance] of the schema allows a result of this dtype on the CPU and on a device, added
// up: both may be so far from what is right. -1: nothing, the values must be equal.
double ToleranceOf(const Operator& op, int dtype, const char* device);
// Whether [test] says that the device's kernels are right for finite results alone.
bool IsFiniteAlone(const Operator& op, const char* device);

// Where and how far elements are off: "[3, 5] is 1.5, expected 1.25 within ...; 2 of 15 are off".
// Empty: nowhere. Floating values fit where |found - expected| <= tolerance * (1 + |expected|).
std::string DifferenceOf(const AnyopTensor& found, const AnyopTensor& expected, double tolerance,
                         bool finite_alone);

}  // namespace anyop
