// SPDX-License-Identifier: Apache-2.0
// No warnings while it lives: torch warns of every kernel that another one takes the place of.
#pragma once

#include <c10/util/Exception.h>

namespace anyop::torch_device {

class Silence final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
  const c10::WarningUtils::WarningHandlerGuard guard_{this};
};

}  // namespace anyop::torch_device
