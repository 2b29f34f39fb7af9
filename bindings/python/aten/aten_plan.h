// SPDX-License-Identifier: Apache-2.0
// Plans of the backend "aten", as anyop.backend.aten_plan gives them.
#pragma once

#include "plan.h"
#include "python.h"

namespace anyop {

// Of the attribute plan of what computes an operator; nullptr where it has none, or one that only
// Python can follow. No error is set.
aten::Plan* TakePlan(const Operator& op, const std::string& kernel, PyObject* computes);

}  // namespace anyop
