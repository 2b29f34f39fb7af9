// SPDX-License-Identifier: Apache-2.0
// What anyop's Python says to the router.
#pragma once

#include "python.h"

namespace anyop {

// Rows of the module's methods; the last one is empty.
extern PyMethodDef routing_methods[];
extern PyMethodDef aten_routing_methods[];

// Tells the router who makes Python's kernels.
void InitRouting();

}  // namespace anyop
