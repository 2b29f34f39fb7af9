// SPDX-License-Identifier: Apache-2.0
// Vector loops of attention's gradient: one row of scores to weights, and their gradients to those
// of the scores.
#pragma once

#include <cstdint>

namespace anyop {

// x = softmax(scale x + bias), n numbers; zeros where all of that is -inf. bias may be nullptr.
void SoftmaxOf(float* x, int64_t n, float scale, const float* bias);
void SoftmaxOf(double* x, int64_t n, double scale, const double* bias);

// grad = scale weight (grad - sum(weight grad)): gradients of the weights to those of the scores
// before they were scaled.
void SoftmaxGradient(const float* weight, int64_t n, float scale, float* grad);
void SoftmaxGradient(const double* weight, int64_t n, double scale, double* grad);

}  // namespace anyop
