// SPDX-License-Identifier: Apache-2.0
// A caller's values as an overload takes them.
#pragma once

#include "call/arena.h"
#include "op.h"

namespace anyop::aten {

constexpr int32_t kMaxArguments = 64;

// Fills prepared[0 .. params of op): defaults, names looked up, one number spread over a list, all
// of the schema's kinds. A status; its text is AnyopLastError.
int32_t Prepare(const Op& op, const AnyopAtenValue* given, int32_t count, Arena* arena,
                AnyopAtenValue* prepared);

}  // namespace anyop::aten
