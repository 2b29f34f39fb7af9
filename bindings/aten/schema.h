// SPDX-License-Identifier: Apache-2.0
// Torch's text of a schema as an Op.
#pragma once

#include "op.h"

namespace anyop::aten {

// Fills op from "add.Tensor(Tensor self, *, Scalar alpha=1) -> Tensor". False where the text is no
// schema.
bool ReadSchema(std::string_view text, Op* op);

// "running_mean,running_var?training". False where op has no such arguments.
bool ReadHiddenWrites(std::string_view text, Op* op);

}  // namespace anyop::aten
