// SPDX-License-Identifier: Apache-2.0
// The route files that libanyop brings: presets/*.routes, embedded by cmake/AnyopPresets.cmake.
#pragma once

namespace anyop {

struct Preset {
  const char* name;
  const char* text;
};
extern const Preset kPresets[];  // by name; ends with {nullptr, nullptr}

}  // namespace anyop
