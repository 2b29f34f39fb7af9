// SPDX-License-Identifier: Apache-2.0
// Results of an ATen operator as the caller's: torch's memory without a copy, or the very argument
// that was written.
#pragma once

#include "aten/aten_match.h"

namespace anyop {

// Whose results are made.
struct AtenReceiver {
  const Framework* home;
  const Source* source;  // of its tensors, where it is known
  bool lends;            // results may lie in memory that is not torch's, and hold on to its owners
};

// like=: a tensor, or a framework's name. False with an error raised.
bool FindReceiver(AtenLoans* loans, PyObject* like, AtenReceiver* receiver);

// Takes over the results. A new reference; nullptr with an error raised.
PyObject* AtenResults(const AtenMatch& match, const AtenReceiver& receiver,
                      AnyopAtenValue* results);

}  // namespace anyop
