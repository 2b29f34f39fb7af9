// SPDX-License-Identifier: Apache-2.0
// Notes the calls of a run, with their shapes, for `anyop tune`.
#pragma once

#include <string>

#include "router/implementation.h"

namespace anyop {

// Ends the record that is written, if any, and begins one in a file; %p in the path stands for the
// process's id. The first call empties the file. An empty path begins none. False with *error when
// the file cannot be written. One that another process writes is left to it, which is said on
// stderr.
bool SetRecord(const std::string& path, std::string* error);
bool IsRecording();
// Calls of this thread are no part of the record, until it is taken back as often.
void PauseRecord(bool on);

// Counts a call of this operator with these shapes, dtypes and arguments.
void RecordCall(const Frame& frame, const Facts& facts, const Implementation& chosen);

}  // namespace anyop
