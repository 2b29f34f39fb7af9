// SPDX-License-Identifier: Apache-2.0
// Products of bfloat16 by panels: 64 columns of b, in which the terms of a pair lie side by side.
#pragma once

#include "gemm.h"

namespace anyop {

constexpr int64_t kPanelColumns = 64;

// Whether the product was computed: one of bfloat16, without batches, of rows of a by rows of b
// without steps inside; panels are made of b first. The bits of a result depend on its own row and
// column alone.
bool Panels(AnyopCall* call, const GemmProblem& problem);

// b.data is panels[N/64][K/2][64][2]; its strides are not read.
bool PackedPanels(AnyopCall* call, const GemmProblem& problem);

}  // namespace anyop
