// SPDX-License-Identifier: Apache-2.0
// What calls of ATen go through: the glue, or torch's C shim.
#pragma once

#include <string>

#include "../torch/shim.h"
#include "op.h"

namespace anyop::aten {

struct Runtime {
  const torch::Shim* shim = nullptr;
  const AnyopTorchAtenGlue* glue = nullptr;  // nullptr: by the shim
};
extern Runtime runtime;  // set before a table is open, then only read

// Loads torch's libraries from the folder where they are not loaded, and the glue; nullptr: none.
// "" or what is wrong.
std::string StartRuntime(const std::string& libraries, const std::string& version,
                         const char* glue);

}  // namespace anyop::aten
