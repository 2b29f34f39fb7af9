// SPDX-License-Identifier: Apache-2.0
// The routes of overloads: what rules of route files and set_route say, and who runs a call.
#pragma once

#include <string>
#include <vector>

#include "routes/overload.h"

namespace anyop::torch_device {

struct Link {
  RouteKind kind;
  std::string name;
};

// Who is asked in turn. Never changed; calls that read it may outlast its being in force.
struct OverloadRoute {
  std::vector<Link> chain;
  std::string reason;
  bool is_default = true;
};

// Tells the router of all overloads, takes its rules over, and follows their changes.
void StartRoutes();

// For overlays alone: follows changes without telling of overloads.
void WatchRoutes();
// Gives an overload the route that is said for it.
void FollowRoute(Overload* overload);

// "native,aten" for one overload until rules change, "" what they say; throws on an unknown name.
void SetRoute(Overload* overload, const std::string& backends);
void CheckRoute(const std::string& backends);
std::string RouteText(const Overload& overload);

// Whether calls are counted.
void CountCalls(bool on);

bool IsBackendAvailable(const std::string& name);

}  // namespace anyop::torch_device
