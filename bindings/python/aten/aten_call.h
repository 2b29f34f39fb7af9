// SPDX-License-Identifier: Apache-2.0
// A call of an operator of ATen's from Python, and its steps: what is given, matched to an
// overload, and returned.
#pragma once

#include <string>
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

// args: positional arguments, then the values of keywords. A new reference; nullptr with an error
// raised.
PyObject* CallAten(const AtenPacket& packet, PyObject* const* args, Py_ssize_t num_positional,
                   PyObject* keywords);

// The full name of the overload that the call would take.
PyObject* ResolveAten(const AtenPacket& packet, PyObject* const* args, Py_ssize_t num_positional,
                      PyObject* keywords);

// What the caller gave, in its order.
struct AtenGiven {
  Given values[kMaxAtenArguments];
  PyObject* names[kMaxAtenArguments];  // of keywords
  uint32_t num_positional = 0;
  uint32_t count = 0;        // without like
  PyObject* like = nullptr;  // a keyword of the call's own
};

// The arguments of an overload.
struct AtenMatch {
  const AtenOverload* overload = nullptr;
  uint32_t count = 0;
  AnyopAtenValue values[kMaxAtenArguments];  // by parameter
  PyObject* objects[kMaxAtenArguments];      // nullptr where a default holds
};

// Which overload the call takes: the first, in torch's order, whose arguments all convert by
// torch's rules. False with an error raised, which says of every overload why it does not fit.
bool Match(const AtenPacket& packet, AtenLoans* loans, const AtenGiven& given, AtenMatch* match);

struct AtenRules {
  bool strict;  // torch's own; else also names of dtypes, an int for a SymInt[2], a seed
  // Set where torch would take the value and make something else of it: a fraction cut to an
  // integer, a number that is no dtype's code.
  bool* spoils;
};

// One argument, converted as torch.ops would. False, without an error, where the value does not fit
// the parameter.
bool Fit(AtenLoans* loans, const aten::Op& op, const aten::Param& p, const Given& given,
         const AtenRules& rules, AnyopAtenValue* value);

// Whose results are made.
struct AtenReceiver {
  const Framework* home;
  const Source* source;  // of its tensors, where it is known
  bool lends;            // results may lie in memory that is not torch's, and hold on to its owners
};

// like=: a tensor, or a framework's name. False with an error raised.
bool FindReceiver(AtenLoans* loans, PyObject* like, AtenReceiver* receiver);

// Results as the caller's: torch's memory without a copy, or the very argument that was written.
// Takes over the results. A new reference; nullptr with an error raised.
PyObject* AtenResults(const AtenMatch& match, const AtenReceiver& receiver,
                      AnyopAtenValue* results);

}  // namespace anyop
