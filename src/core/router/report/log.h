// SPDX-License-Identifier: Apache-2.0
// Says what runs: on stderr, as JSON lines in a file, and to a binding.
#pragma once

#include <string>

#include "router/implementation.h"

namespace anyop {

struct Choice {
  const Operator* op;
  const Implementation* chosen;
  const std::string& reason;
  int device_type;
  int device_id;
  int choice;  // -1: none
  bool falls_back;
};

// 0: nothing, 1: each choice once, 2: every call. The file is added to; empty: none. False with
// *error when it cannot be opened.
bool SetLog(int level, const std::string& file, bool to_stderr, std::string* error);
int LogLevel();
// Where it stands, to be read atomically.
const int32_t* LogLevelPlace();

// Called with each line that is said: as text, and as JSON.
void SetLogSink(void (*sink)(const char* text, const char* json));

void LogChoice(const Choice& choice);
// Its address may soon be another's.
void ForgetChoices(const Implementation* chosen);

// What runs an overload of ATen's: "add.Tensor", "native", "anyop:0".
struct AtenChoice {
  std::string overload;
  std::string backend;
  std::string device;
};
void LogAtenChoice(const AtenChoice& choice, const std::string& reason, bool falls_back);

// Once for each operator, device and rule.
bool IsNewFallback(const Choice& choice);
void LogFallback(const std::string& text);
void LogFallbackOnce(const std::string& text);

}  // namespace anyop
