// SPDX-License-Identifier: Apache-2.0
// Which overload of an ATen operator a call takes: the first, in torch's order, whose arguments all
// convert by torch's rules.
#pragma once

#include <vector>

#include "aten/aten_loans.h"
#include "op.h"

namespace anyop {

struct AtenOverload {
  const aten::Op* op;
  uint32_t num_params;
  uint32_t num_required;         // up to the last argument without a default
  std::vector<PyObject*> names;  // interned
};

// The overloads of a name, or one of them. Never freed.
struct AtenPacket {
  std::string name;
  std::vector<AtenOverload> overloads;
};

// What the caller gave, in its order.
struct AtenGiven {
  Given values[kMaxAtenArguments];
  PyObject* names[kMaxAtenArguments];  // of keywords
  uint32_t num_positional = 0;
  uint32_t count = 0;
};

// The arguments of an overload.
struct AtenMatch {
  const AtenOverload* overload = nullptr;
  uint32_t count = 0;
  AnyopAtenValue values[kMaxAtenArguments];  // by parameter
  PyObject* objects[kMaxAtenArguments];      // nullptr where a default holds
};

// False with an error raised, which says of every overload why it does not fit.
bool Match(const AtenPacket& packet, AtenLoans* loans, const AtenGiven& given, AtenMatch* match);

}  // namespace anyop
