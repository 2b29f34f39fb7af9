// SPDX-License-Identifier: Apache-2.0
// What the router knows, under one lock, and how routes are made of it.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "router/router.h"
#include "router/rules/aten_routes.h"

namespace anyop {

// One operator: its implementations, and every route it had with them, by what is in them.
struct State {
  Operator* op;
  std::vector<Implementation*> implementations;  // its own, the preferred first
  std::map<std::string, std::unique_ptr<Route>> routes;
  std::vector<std::unique_ptr<Shortcut>> shortcuts;
  const Route* route = nullptr;  // of now
  const Route* next = nullptr;   // made, and not yet of now
  bool watched = false;
};

struct Router {
  std::mutex mutex;
  std::map<const Operator*, State> states;
  std::vector<std::unique_ptr<Shortcut>> to_choose;  // those that lead nowhere: of all operators
  std::vector<LoadedRule> rules;                     // of the route file, about operators
  AtenRoutes aten;
  RouteFile file;
  std::map<std::string, Resolve> providers;
  bool deterministic = false;
  uint32_t watch = 0;
};

Router& TheRouter();

// The callers of all these hold the lock.

Catalogue MakeCatalogue(const Router& router);

// Why no route may lead to an implementation, whatever the call; empty when one may.
std::string Refusal(const Router& router, const Implementation& implementation);

// Whether it takes tensors of this kind of device.
bool Serves(const Implementation& implementation, int device_type);

// Behind the devices that are named, 0 stands for all others.
constexpr int kUnnamed = 0;

// Makes the route of what is known now, and lets calls see it. Where that throws, all is as before.
void Publish(Router* router, State* state);
void PublishAll(Router* router);
// The same after value has become what is known; where it throws, that too is as before.
template <typename T, typename Function>
void PublishWith(T* place, T value, const Function& publish) {
  std::swap(*place, value);
  try {
    publish();
  } catch (...) {
    std::swap(*place, value);
    throw;
  }
}
// Says which choices of the route file are for another machine.
void ReportOtherMachines(const Router& router);

// Makes what calls see while scopes are active. Where that throws, all is as before.
void MakeTwins(Router* router);
// Lets calls see the route that was made, with scopes or without.
void Show(const Router& router, State* state);

}  // namespace anyop
