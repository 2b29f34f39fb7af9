// SPDX-License-Identifier: Apache-2.0
// The C ABI's part about implementations and routes.
#include <string>

#include "anyop/anyop.h"
#include "api/c_error.h"
#include "router/router.h"

namespace anyop {
namespace {

Operator* Handle(const AnyopOperator* op) {
  return const_cast<Operator*>(reinterpret_cast<const Operator*>(op));
}

int32_t Status(bool good, const std::string& error) {
  return good ? int32_t{kAnyopOk} : SetError(kAnyopValueError, error.c_str());
}

int32_t Register(const AnyopOperator* op, const AnyopImplementation* given) {
  if (!op || !given || given->size < sizeof *given || !given->backend || !given->backend[0] ||
      !given->run) {
    return SetError(kAnyopValueError,
                    "AnyopRegisterImplementation: expected an operator, and an implementation with "
                    "size, backend and run");
  }
  auto made = std::make_unique<Implementation>();
  made->backend = given->backend;
  made->name = given->name ? given->name : given->backend;
  made->source = given->source ? given->source : "";
  made->device_type = given->device_type;
  made->priority = given->priority;
  made->deterministic = given->flags & kAnyopDeterministic;
  made->run = given->run;
  made->context = given->context;
  made->readiness = Readiness::kReady;
  std::string error;
  return Status(AddImplementation(Handle(op), std::move(made), given->when, &error), error);
}

}  // namespace
}  // namespace anyop

using anyop::Guarded;

int32_t AnyopRegisterImplementation(const AnyopOperator* op,
                                    const AnyopImplementation* implementation) {
  return Guarded([&] { return anyop::Register(op, implementation); });
}

int32_t AnyopRemoveImplementation(const AnyopOperator* op, const char* name) {
  if (!op || !name)
    return anyop::SetError(kAnyopValueError, "AnyopRemoveImplementation: an argument is NULL");
  return Guarded([&] {
    std::string error;
    return anyop::Status(anyop::RemoveImplementation(anyop::Handle(op), name, &error), error);
  });
}

int32_t AnyopLoadRoutes(const char* path) {
  return Guarded([&] {
    std::string error;
    return anyop::Status(anyop::LoadRoutes(path, &error), error);
  });
}

int32_t AnyopSetDeterministic(int32_t on) {
  return Guarded([&] {
    anyop::SetDeterministic(on != 0);
    return int32_t{kAnyopOk};
  });
}
