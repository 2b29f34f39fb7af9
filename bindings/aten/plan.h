// SPDX-License-Identifier: Apache-2.0
// Kernels of the form "aten" without Python: plans that the glue runs. What one cannot do is left
// to the kernel in Python.
#pragma once

#include <string>
#include <vector>

#include "../torch_glue/torch_aten_glue.h"
#include "operator/operator.h"

namespace anyop::aten {

// As anyop.backend.aten_plan writes it.
struct PlanText {
  std::string name;  // of the kernel
  std::vector<AnyopAtenStep> steps;
  std::vector<AnyopAtenValue> constants;
  std::vector<std::string> calls;  // "add.Tensor", "silu"
  int32_t num_values = 0;
  int32_t into = -1;
};

struct Plan;

// nullptr: this is for Python.
Plan* MakePlan(const Operator& op, const PlanText& text);
void FreePlan(Plan* plan);

// kAnyopPending: this call is for Python, nothing is done.
int32_t RunPlan(const Plan& plan, const void* args, AnyopCall* call);

}  // namespace anyop::aten
