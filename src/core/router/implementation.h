// SPDX-License-Identifier: Apache-2.0
// One way to compute an operator, and what routes need to know of it.
#pragma once

#include <atomic>
#include <string>

#include "when.h"

namespace anyop {

struct Implementation;

// Makes run and context of an implementation when it is first needed, or says in *why what is
// missing. Called without any lock of the core; may be called by several threads at once. One that
// would have to build something while it is only asked returns true and no run.
using Resolve = bool (*)(const Implementation& implementation, AnyopKernel* run, void** context,
                         std::string* why);

enum class Readiness : int { kUnresolved, kReady, kMissing };

// Never freed: a call may be in it. All but readiness, run, context, why and calls stays as it was
// made.
struct Implementation {
  const Operator* op;
  std::string name;
  std::string backend;
  std::string source;
  std::string when_text;
  When when;
  std::string form;  // how text is to be read; empty for compiled code
  std::string text;
  void* resolve_context = nullptr;
  int device_type = 0;  // 0: any
  int priority = 0;
  bool deterministic = false;
  bool is_own = false;  // compiled into the operator's library
  Resolve resolve = nullptr;

  std::atomic<Readiness> readiness{Readiness::kUnresolved};
  AnyopKernel run = nullptr;  // these three are written before readiness is
  void* context = nullptr;
  std::string why;
  std::atomic<int64_t> calls{0};  // of those that were watched
};

}  // namespace anyop
