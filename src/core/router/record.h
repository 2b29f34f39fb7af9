// SPDX-License-Identifier: Apache-2.0
// Notes the calls of a run, with their shapes, for `anyop tune`.
#pragma once

#include <string>

#include "implementation.h"

namespace anyop {

// Begins a record in a file, which it empties; an empty path ends it. False with *error when the
// file cannot be written.
bool SetRecord(const std::string& path, std::string* error);
bool IsRecording();

// Counts a call of this operator with these shapes, dtypes and arguments.
void RecordCall(const Frame& frame, const Facts& facts, const Implementation& chosen);

}  // namespace anyop
