// SPDX-License-Identifier: Apache-2.0
// Says what runs: on stderr, as JSON lines in a file, and to a binding.
#pragma once

#include <string>

#include "implementation.h"

namespace anyop {

struct Choice {
  const Operator* op;
  const Implementation* chosen;
  const std::string& reason;
  int device_type;
  int device_id;
  bool falls_back;
};

// 0: nothing, 1: each choice once, 2: every call. The file is added to; empty: none. False with
// *error when it cannot be opened.
bool SetLog(int level, const std::string& file, bool to_stderr, std::string* error);
int LogLevel();

// Called with each line that is said: as text, and as JSON.
void SetLogSink(void (*sink)(const char* text, const char* json));

void LogChoice(const Choice& choice);

// Once for each operator, device and rule.
bool IsNewFallback(const Choice& choice);
void LogFallback(const std::string& text);

}  // namespace anyop
