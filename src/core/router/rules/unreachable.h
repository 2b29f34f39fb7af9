// SPDX-License-Identifier: Apache-2.0
// Rules that decide nothing, whatever is called, and why.
#pragma once

#include <string>
#include <vector>

#include "router/rules/aten_routes.h"
#include "router/rules/rules.h"

namespace anyop {

// Of each rule why no call of these operators gets to it; empty where one may.
std::vector<std::string> WhyUnreachable(const std::vector<LoadedRule>& rules,
                                        const std::vector<const Operator*>& operators);

// The same of rules about overloads. The caller holds the router's lock.
std::vector<std::string> WhyUnreachable(const AtenRoutes& aten,
                                        const std::vector<std::string>& overloads);

}  // namespace anyop
