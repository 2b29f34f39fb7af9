// SPDX-License-Identifier: Apache-2.0
// Two tensors of the host, compared as the standard tests compare.
#pragma once

#include <string>

#include "anyop/kernel.h"

namespace anyop {

// Where and how far elements are off: "[3, 5] is 1.5, expected 1.25 within ...; 2 of 15 are off".
// Empty: nowhere. Floating values fit where |found - expected| <= tolerance * (1 + |expected|).
std::string DifferenceOf(const AnyopTensor& found, const AnyopTensor& expected, double tolerance,
                         bool finite_alone);

}  // namespace anyop
