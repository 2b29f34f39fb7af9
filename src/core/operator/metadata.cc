// SPDX-License-Identifier: Apache-2.0
// Reads the metadata of a table. What is not there, or is no JSON, says nothing.
#include "operator/metadata.h"

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "tensors/dtype.h"

namespace anyop {
namespace {

using nlohmann::json;

json Read(const Operator& op) { return json::parse(op.table->metadata, nullptr, false); }

// What lies behind these keys; null where nothing does.
json At(const json& from, std::initializer_list<const char*> keys) {
  const json* found = &from;
  for (const char* key : keys) {
    if (!found->is_object() || !found->contains(key)) return {};
    found = &found->at(key);
  }
  return *found;
}

double NumberOf(const json& value) { return value.is_number() ? value.get<double>() : -1; }

}  // namespace

double ToleranceOf(const Operator& op, int dtype, const char* device) {
  const json read = Read(op);
  const double here = NumberOf(At(read, {"tolerance", DtypeName(dtype)}));
  const double there = NumberOf(At(read, {"tolerance_on", device, DtypeName(dtype)}));
  return here < 0 ? -1 : here + std::max(here, there);
}

bool IsFiniteAlone(const Operator& op, const char* device) {
  const json found = At(Read(op), {"test", "finite"});
  return std::find(found.begin(), found.end(), json(device)) != found.end();
}

bool StatesBackend(const Operator& op, const std::string& backend) {
  const json kernels = At(Read(op), {"kernels"});
  return std::any_of(kernels.begin(), kernels.end(),
                     [&](const json& kernel) { return At(kernel, {"backend"}) == json(backend); });
}

}  // namespace anyop
