// SPDX-License-Identifier: Apache-2.0
// What a call by torch's C shim must copy, as the glue does (torch_aten_separate.h).
#pragma once

#include <vector>

#include "op.h"

namespace anyop::aten {

// Finds the tensors, of arguments and of their lists, that are read and share memory with what is
// written. Where two are written in the same place, the call is refused.
int32_t FindReadsToCopy(const Op& op, const AnyopAtenValue* arguments,
                        std::vector<const AnyopAtenValue*>* copied);

}  // namespace anyop::aten
