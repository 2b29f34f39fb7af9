// SPDX-License-Identifier: Apache-2.0
// Which kernel runs: per operator one pointer to its current route, read by one atomic load in a
// call.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "operator/operator.h"
#include "router/choose/reading.h"
#include "router/implementation.h"

namespace anyop {

constexpr int kMaxDeviceTypes = 32;

struct Scope;

struct Ready {
  AnyopKernel run = nullptr;  // nullptr: Choose decides
  void* context = nullptr;
  int64_t choice = -1;  // AnyopCall::choice
};

// One that is asked, and the choice that a rule makes for it; -1: none.
struct Turn {
  const Implementation* implementation;
  int choice;
};

// One rule as it concerns an operator on one kind of device: who is asked, in turn.
struct Variant {
  CallCondition when;
  std::vector<Turn> order;
  size_t listed = 0;               // the first so many are the rule's own
  std::vector<std::string> named;  // as the rule names them, "cuda:5"; empty: priorities alone
  std::string reason;              // "default", "ANYOP_OP_RMS_NORM", "routes.txt:12"
};
using Variants = std::vector<Variant>;  // the first whose condition holds

// Of these candidates, in their order, those that a rule names first.
Variant MakeVariant(std::vector<const Implementation*> candidates,
                    const std::vector<std::string>& named, const std::string& reason);

// What runs for every call on a kind of device. All that most calls read, without a word to anyone:
// never changed once published, never freed. What can be taken away is in none, so there are few.
struct Shortcut {
  Ready ready[kMaxDeviceTypes] = {};
  int runs_as = 0;      // of that for a framework's device: as what kind of device it runs
  bool scoped = false;  // scopes are active somewhere
};

// What may run on one kind of device.
struct OnDevice {
  std::vector<const Implementation*> candidates;  // all of them, by priority
  Variants variants;
};

// Never changed once published, and read within a Reading. Equal routes are one object, so
// reloading does not grow; those with an implementation that was taken away are freed.
struct Route final : Readable {
  const Shortcut* shortcut = nullptr;
  // [0]: of devices that no implementation and no rule names; behind it those that one names.
  std::vector<OnDevice> devices;
  uint32_t named_devices = 0;
  bool scoped = false;
  // The same while they are; of a route that is not, made when they first are.
  mutable std::unique_ptr<const Route> twin;  // of who holds the router's lock

  bool Names(int device_type) const { return named_devices >> device_type & 1; }
  const OnDevice& On(int device_type) const {
    const uint32_t before = named_devices & ((uint32_t{1} << device_type) - 1);
    return devices[Names(device_type) ? 1 + static_cast<size_t>(__builtin_popcount(before)) : 0];
  }

  mutable std::mutex mutex;  // of what follows
  mutable std::map<std::pair<const Scope*, int>, std::unique_ptr<Variants>> in_scope;
};

}  // namespace anyop
