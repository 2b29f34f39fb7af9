// SPDX-License-Identifier: Apache-2.0
// What is left of a thread's stack, asked before code of the caller's that may come back here.
#pragma once

namespace anyop {

// False with RecursionError set where the next calls would end the process. Python counts its own
// frames alone, whatever a call of an operator lays between them.
bool HasStack();

}  // namespace anyop
