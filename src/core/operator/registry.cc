// SPDX-License-Identifier: Apache-2.0
// A map under a lock. Calls never come here: bindings keep the Operator they found.
#include "operator/registry.h"

#include <map>
#include <memory>
#include <mutex>

#include "router/router.h"

// The operators compiled into this library.
extern "C" const AnyopLibrary* AnyopLibraryEntry(void);

namespace anyop {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string, Operator*> by_name;  // operators are never freed: calls may be in flight
  std::vector<OperatorObserver> observers;
  std::string route_error;  // of the environment
};

// The caller holds the lock.
int32_t Register(Registry* registry, const AnyopLibrary* library, std::string* error) {
  if (!library || library->size < sizeof(AnyopLibrary)) {
    *error =
        "the library's description is missing or smaller than any released; rebuild the library";
    return kAnyopValueError;
  }
  if (library->abi_version == 0 || library->abi_version > ANYOP_ABI_VERSION) {
    *error = std::string("library ") + library->name + " has ABI version " +
             std::to_string(library->abi_version) + ", this core reads 1 to " +
             std::to_string(ANYOP_ABI_VERSION) + "; update anyop or rebuild the library";
    return kAnyopValueError;
  }
  std::vector<std::unique_ptr<Operator>> made;
  for (uint32_t i = 0; i < library->num_ops; ++i) {
    std::unique_ptr<Operator> op(MakeOperator(library->ops[i], library->abi_version, error));
    if (!op) return kAnyopValueError;
    const auto found = registry->by_name.find(op->full_name);
    if (found == registry->by_name.end()) {
      made.push_back(std::move(op));
    } else if (found->second->table != library->ops[i]) {
      *error = op->full_name + " is registered already, with the schema " +
               found->second->table->schema +
               "; what is loaded stays, so start a new process for another build of it, or give it "
               "another namespace";
      return kAnyopValueError;
    }
  }
  for (auto& op : made) {
    try {
      AddToRouter(op.get());
      registry->by_name[op->full_name] = op.get();
    } catch (...) {
      ForgetInRouter(op.get());
      throw;
    }
    Operator* there = op.release();
    for (OperatorObserver observer : registry->observers) observer(there);
  }
  ReportMissingOperators();
  return kAnyopOk;
}

// Our own operators and the environment's routes. Where it throws, it is done again.
bool Start(Registry* registry) {
  std::string error;
  if (Register(registry, AnyopLibraryEntry(), &error) != kAnyopOk) {
    std::fprintf(stderr, "anyop: %s\n",
                 error.c_str());  // our own tables are broken; tests would not pass
    std::abort();
  }
  registry->route_error = StartRouter();
  return true;
}

Registry& TheRegistry() {
  static auto* registry = new Registry;  // never destroyed: threads may outlive main
  static const bool started = Start(registry);
  static_cast<void>(started);
  return *registry;
}

std::string FullName(const char* name) {
  std::string full = name;
  const size_t colons = full.find("::");
  if (colons != std::string::npos) full.replace(colons, 2, ".");
  return full.find('.') == std::string::npos ? "anyop." + full : full;
}

}  // namespace

Operator* FindOperator(const char* name) {
  Registry& registry = TheRegistry();
  std::lock_guard<std::mutex> lock(registry.mutex);
  const auto found = registry.by_name.find(FullName(name));
  return found == registry.by_name.end() ? nullptr : found->second;
}

const std::string& RouteError() { return TheRegistry().route_error; }

int32_t ListOperators(Operator** operators, int32_t capacity) {
  Registry& registry = TheRegistry();
  std::lock_guard<std::mutex> lock(registry.mutex);
  int32_t count = 0;
  for (const auto& entry : registry.by_name) {
    if (count < capacity) operators[count] = entry.second;
    ++count;
  }
  return count;
}

int32_t RegisterLibrary(const AnyopLibrary* library, std::string* error) {
  Registry& registry = TheRegistry();
  std::lock_guard<std::mutex> lock(registry.mutex);
  return Register(&registry, library, error);
}

void ObserveOperators(OperatorObserver observer) {
  Registry& registry = TheRegistry();
  std::lock_guard<std::mutex> lock(registry.mutex);
  registry.observers.push_back(observer);
  for (const auto& entry : registry.by_name) observer(entry.second);
}

}  // namespace anyop
