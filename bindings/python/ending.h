// SPDX-License-Identifier: Apache-2.0
// Whether Python's interpreter is at its end, and what its threads do then.
#pragma once

namespace anyop {

// Python is there, and has ended or is about to: its lock may not be waited for.
__attribute__((visibility("hidden"))) bool IsEnding();

[[noreturn]] __attribute__((visibility("hidden"))) void SleepForEver();

}  // namespace anyop
