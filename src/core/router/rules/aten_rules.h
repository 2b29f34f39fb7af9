// SPDX-License-Identifier: Apache-2.0
// Rules about overloads of ATen's, aten.mm = native: what they fit, and what may stand in them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "router/read/route_file.h"

namespace anyop {

// What these rules can name.
struct AtenNames {
  std::vector<std::string> overloads;  // "add.Tensor", "mm"; empty: nobody has told them yet
  std::vector<std::string> backends;   // besides the router's own
};

// Whether a pattern is about ATen's overloads. It begins with aten. or aten::, so that * is not.
bool IsAten(std::string_view pattern);

// aten.add fits all overloads of add, aten.add.Tensor one, aten.mm.default the one without a name.
bool FitsOverload(std::string_view pattern, const std::string& overload);

// device: anyop, cpu or cuda.
bool HoldsOn(const std::string& device, const std::vector<Term>& when);

constexpr const char* kAtenDevices[] = {"anyop", "cpu", "cuda"};
bool IsAtenDevice(const std::string& device);

// torch's own kernel, for operators and for overloads.
constexpr const char* kTorchsOwn = "aten";
// A backend by its one name: aten, which rules of overloads may call boxed.
std::string PlainAtenBackend(const std::string& name);
// Its name in ANYOP_DISABLE, where aten is about operators and boxed about overloads.
std::string DisabledAs(const std::string& backend);

bool IsKnownAtenBackend(const std::string& name, const AtenNames& names);
// "unknown backend 'nativ' of ATen's overloads, expected native, aten, ...; did you mean
// 'native'?"
std::string UnknownAtenBackend(const std::string& name, const AtenNames& names);
std::string UnknownOverload(const std::string& pattern, const AtenNames& names);
// What is wrong with a list of backends apart from their names; empty when nothing is.
std::string WrongOrder(const std::vector<std::string>& backends);

bool CheckAtenRule(const RouteFile& file, const Rule& rule, const AtenNames& names,
                   std::string* error);

// Whether "!pattern" in ANYOP_DISABLE is about ATen's overloads, and whether about them alone.
bool ConcernsAten(const std::string& pattern, const AtenNames& names);
bool ConcernsAtenAlone(const std::string& pattern);

}  // namespace anyop
