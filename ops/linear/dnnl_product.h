// SPDX-License-Identifier: Apache-2.0
// Products of bfloat16 by oneDNN.
#pragma once

#include "dnnl.h"
#include "gemm.h"

namespace anyop::dnnl {

// Whether the product was computed; false for what oneDNN has no fast kernel for: then the results
// hold anything. Sums are float32 and rounded once.
bool Multiply(AnyopCall* call, const GemmProblem& problem, const Library& library);

}  // namespace anyop::dnnl
