// SPDX-License-Identifier: Apache-2.0
// Turns overlays on and off: which overloads they take, and what is registered over them.
#include "routes/overlay.h"

#include <ATen/Context.h>
#include <anyop/aten_route.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "routes/native.h"
#include "routes/routes.h"

namespace anyop::torch_device {
namespace {

using c10::DispatchKey;

std::mutex turning;         // held while overlays are turned on or off; before those of routes.cc
std::mutex overlays_mutex;  // of what follows; no other lock is taken under it
std::map<std::pair<std::string, std::string>, Overload*> known;  // name, device
int64_t last_number = 0;

DispatchKey KeyOf(const std::string& device) {
  if (device == "cpu") return DispatchKey::CPU;
  TORCH_CHECK_VALUE(device == "cuda", "an overlay lies on 'cpu' or 'cuda', not on '", device, "'");
  TORCH_CHECK_VALUE(at::globalContext().hasCUDA(), "this torch has no CUDA to overlay");
  return DispatchKey::CUDA;
}

// Made when it is first overlaid.
Overload* Know(const c10::OperatorHandle& op, const std::string& device, DispatchKey key) {
  auto made = std::make_unique<Overload>(op);
  {
    const std::lock_guard lock(overlays_mutex);
    const auto found = known.find({made->name, device});
    if (found != known.end()) return found->second;
  }
  auto overlaid = std::make_unique<Overlaid>(device, key);
  made->overlaid = overlaid.get();
  AttachNative(made.get());
  MakeKernel(made.get(), overlaid.get());
  const std::lock_guard lock(overlays_mutex);
  overlaid.release();
  Overload*& place = known[{made->name, device}];
  return place = made.release();
}

Overlaid* Of(const Overload* overload) { return const_cast<Overlaid*>(overload->overlaid); }

// A signature that is not among the known ones must be boxed, which costs: only while a call has to
// be looked at.
void Adjust(Overload* overload) {
  Overlaid* overlaid = Of(overload);
  const bool wanted =
      !overlaid->overlays.empty() && (overlaid->signature || overload->attention.load() != 0);
  if (wanted && !overlaid->registered) LayOver(overload, overlaid);
  if (!wanted) overlaid->registered.reset();
}

// Whether torch has a kernel of its own for this key: what is made of other overloads has none.
bool HasKernel(const c10::OperatorHandle& op, DispatchKey key) {
  return op.hasKernelForDispatchKey(key) ||
         op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd);
}

bool IsRuled(const std::string& name, const std::string& device) {
  AnyopAtenRouting routing = {};
  routing.size = sizeof routing;
  const int32_t status = AnyopAtenRoute(name.c_str(), device.c_str(), &routing);
  TORCH_CHECK_VALUE(status == kAnyopOk, AnyopLastError());
  return !routing.is_default;
}

std::string Short(std::string name) {
  for (const char* prefix : {"aten::", "aten."})
    if (name.rfind(prefix, 0) == 0) name = name.substr(std::string(prefix).size());
  const std::string plain = ".default";
  const bool is_plain = name.size() > plain.size() &&
                        name.compare(name.size() - plain.size(), plain.size(), plain) == 0;
  return is_plain ? name.substr(0, name.size() - plain.size()) + "." : name;
}

// linear.out has a kernel, which calls linear, which has none.
bool TakesPlaces(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  return std::any_of(arguments.begin(), arguments.end(), [](const auto& a) { return a.is_out(); });
}

// The overloads that are named, in torch's order; all that a rule names where none is.
std::vector<c10::OperatorHandle> Chosen(const std::vector<std::string>& ops,
                                        const std::string& device, DispatchKey key) {
  std::map<std::string, int> wanted;  // 1: torch has it, 2: and a kernel
  for (const std::string& op : ops) wanted[Short(op)] = 0;
  std::vector<c10::OperatorHandle> chosen;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& op_name : dispatcher.getAllOpNames()) {
    if (op_name.name.rfind("aten::", 0) != 0) continue;
    const auto op = dispatcher.findSchema(op_name);
    if (!op) continue;
    const std::string packet = op_name.name.substr(6);
    const bool has = HasKernel(*op, key);
    bool is_named = false;
    for (const std::string& name : {packet, packet + "." + op_name.overload_name}) {
      const auto found = wanted.find(name);
      if (found == wanted.end()) continue;
      is_named = true;
      const bool counts = has && (name != packet || !TakesPlaces(op->schema()));
      found->second = std::max(found->second, counts ? 2 : 1);
    }
    if (ops.empty() && has) is_named = IsRuled(c10::toString(op_name).substr(6), device);
    if (is_named && has) chosen.push_back(*op);
  }
  for (const auto& [name, found] : wanted) {
    TORCH_CHECK_VALUE(found != 0, "torch has no overload of ATen's named '", name, "'");
    TORCH_CHECK_VALUE(found == 2, "torch has no kernel of ", name, " for ", device,
                      ": it is made of other overloads, overlay those");
  }
  return chosen;
}

}  // namespace

std::string Overlaid::Said() const {
  const std::lock_guard lock(overlays_mutex);
  for (auto at = overlays.rbegin(); at != overlays.rend(); ++at)
    if (!at->second.empty()) return at->second;
  return "";
}

int64_t TurnOverlayOn(const std::vector<std::string>& ops, const std::string& device,
                      const std::string& route) {
  WatchRoutes();
  const std::lock_guard lock(turning);
  const DispatchKey key = KeyOf(device);
  CheckRoute(route);
  const std::vector<c10::OperatorHandle> chosen = Chosen(ops, device, key);
  const int64_t number = ++last_number;
  std::vector<Overload*> overloads;
  for (const c10::OperatorHandle& op : chosen) {
    overloads.push_back(Know(op, device, key));
    const std::lock_guard inner(overlays_mutex);
    Of(overloads.back())->overlays.emplace_back(number, route);
  }
  for (Overload* overload : overloads) {
    FollowRoute(overload);
    Adjust(overload);
  }
  return number;
}

void TurnOverlayOff(int64_t number) {
  const std::lock_guard lock(turning);
  for (Overload* overload : OverlaidOverloads()) {
    auto& overlays = Of(overload)->overlays;
    const auto found = std::find_if(overlays.begin(), overlays.end(),
                                    [&](const auto& each) { return each.first == number; });
    if (found == overlays.end()) continue;
    {
      const std::lock_guard inner(overlays_mutex);
      overlays.erase(found);
    }
    if (overlays.empty())
      overload->attention.store(0);
    else
      FollowRoute(overload);
    Adjust(overload);
  }
}

void AdjustOverlays() {
  const std::lock_guard lock(turning);
  for (Overload* overload : OverlaidOverloads()) Adjust(overload);
}

std::vector<Overload*> OverlaidOverloads() {
  const std::lock_guard lock(overlays_mutex);
  std::vector<Overload*> found;
  for (const auto& [name, overload] : known)
    if (!overload->overlaid->overlays.empty()) found.push_back(overload);
  return found;
}

Overload* FindOverlaid(const std::string& name, const std::string& device) {
  const std::lock_guard lock(overlays_mutex);
  const auto found = known.find({name, device});
  return found == known.end() ? nullptr : found->second;
}

}  // namespace anyop::torch_device
