// SPDX-License-Identifier: Apache-2.0
// For what one step of an optimizer does to one element, written once for the CPU and for CUDA.
//
// An optimizer is a struct of a call's attributes and numbers, `template <typename Single> struct
// Sgd`, made of the call's arguments; Single is a tensor of one element in the memory of the
// device.
//   kReads, kWrites                  which of p, g, states are read and written, a bit each
//   kCountsTensors                   whether At reads n; then tensors without elements count, too
//   bool Skips() const               whether nothing is to be done
//   Step<W> At(W, int64_t n) const   all that is the same for each element of tensor n
// Step<W>::operator()(W& p, W g, W&... states) is the step of one element, computed in W.
// cpu_step.h and cuda_step.h walk over the lists.
#ifndef ANYOP_OPS_MULTI_TENSOR_STEP_H_
#define ANYOP_OPS_MULTI_TENSOR_STEP_H_

#include <math.h>
#include <stdint.h>

#if defined(__CUDACC__) || defined(__HIPCC__)
#include "anyop/cuda.h"
#define ANYOP_STEP __device__ inline
#else
#define ANYOP_STEP inline
#endif

namespace anyop {

// 1 - beta^step, without losing digits where that is small.
ANYOP_STEP double BiasOf(double log_beta, double step) { return -expm1(step * log_beta); }

// MulAdd: a * b + c; SumOfTwo: a * b + c * d, of which a GPU rounds the second product alone.
// Quotient, Root: a / b and the root of v; on a GPU those of float32 are off by up to two units in
// the last place.
#if defined(__CUDACC__) || defined(__HIPCC__)
template <typename W>
ANYOP_STEP W Quotient(W a, W b) {
  return a * cuda::Reciprocal(b);
}
using cuda::MulAdd;
template <typename W>
ANYOP_STEP W SumOfTwo(W a, W b, W c, W d) {
  return MulAdd(a, b, c * d);
}
ANYOP_STEP double Root(double v) { return sqrt(v); }
ANYOP_STEP float Root(float v) {
#if ANYOP_PTX
  float root;  // of a number below 2^-126 too
  asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(v));
  return root;
#else
  return sqrtf(v);
#endif
}
#else
template <typename W>
ANYOP_STEP W MulAdd(W a, W b, W c) {
  return a * b + c;
}
template <typename W>
ANYOP_STEP W SumOfTwo(W a, W b, W c, W d) {
  return a * b + c * d;
}
template <typename W>
ANYOP_STEP W Quotient(W a, W b) {
  return a / b;
}
template <typename W>
ANYOP_STEP W Root(W v) {
  return sqrt(v);
}
#endif

}  // namespace anyop

#endif  // ANYOP_OPS_MULTI_TENSOR_STEP_H_
