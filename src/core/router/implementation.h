// SPDX-License-Identifier: Apache-2.0
// One way to compute an operator, and what routes need to know of it.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "router/choose/reading.h"
#include "router/rules/call_condition.h"

namespace anyop {

struct Implementation;

// Makes run and context of an implementation when it is first needed, or says in *why what is
// missing. Called without any lock of the core; may be called by several threads at once. One that
// would have to build something while it is only asked returns true and no run.
using Resolve = bool (*)(const Implementation& implementation, AnyopKernel* run, void** context,
                         std::string* why);

enum class Readiness : int { kUnresolved, kReady, kMissing };

// Read within a Reading. All but readiness, run, context, why, calls and declined stays as it was
// made.
struct Implementation : Readable {
  ~Implementation() override;

  const Operator* op;
  std::string name;
  std::string backend;
  std::string source;
  std::string when_text;
  CallCondition when;
  std::string form;  // how text is to be read; empty for compiled code
  std::string text;
  void* resolve_context = nullptr;
  int device_type = 0;  // 0: any
  int priority = 0;
  int choices = 0;  // ways it can be told to go
  bool deterministic = false;
  bool is_own = false;  // compiled into the operator's library
  Resolve resolve = nullptr;
  // Lets go of both, which may be nullptr. Set where they can be: calls then come by Choose alone.
  void (*forget)(void* resolve_context, void* context) = nullptr;

  std::atomic<Readiness> readiness{Readiness::kUnresolved};
  AnyopKernel run = nullptr;  // these three are written before readiness is
  void* context = nullptr;
  std::string why;
  std::atomic<int64_t> calls{0};  // of those that were watched
  // Why it left a call to others that it had been asked to run, the first; its own.
  std::atomic<const std::string*> declined{nullptr};
};

// For bindings in another library, which make none themselves.
std::unique_ptr<Implementation> NewImplementation();

}  // namespace anyop
