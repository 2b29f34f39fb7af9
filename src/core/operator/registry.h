// SPDX-License-Identifier: Apache-2.0
// All operators of the process, by name.
#pragma once

#include <string>
#include <vector>

#include "anyop/table.h"
#include "operator/operator.h"

namespace anyop {

// nullptr when there is none. Takes "rms_norm", "anyop.rms_norm", "acme.rms_norm" and
// "acme::rms_norm".
Operator* FindOperator(const char* name);

// What is wrong with the routes that the environment's variables state; empty when nothing is.
const std::string& RouteError();

// Writes up to capacity, in the order of full names; how many there are.
int32_t ListOperators(Operator** operators, int32_t capacity);

// Registers all operators of a library or none; *error says why not. The same table again is no
// error.
int32_t RegisterLibrary(const AnyopLibrary* library, std::string* error);

// Called once for each operator there is and each that comes, under the registry's lock.
using OperatorObserver = void (*)(Operator* op);
void ObserveOperators(OperatorObserver observer);

}  // namespace anyop
