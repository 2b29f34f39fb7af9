// SPDX-License-Identifier: Apache-2.0
// Calls by torch's C shim, where there is no glue.
#pragma once

#include "op.h"

namespace anyop::aten {

// As the glue's call: prepared arguments, a status with AnyopLastError.
int32_t CallByShim(const Op& op, const AnyopAtenValue* arguments, AnyopAtenValue* results,
                   const AnyopAtenOptions* options);

int32_t ViewByShim(AnyopAtenTensor** tensor, AnyopTensor* view, uint32_t* flags);

}  // namespace anyop::aten
