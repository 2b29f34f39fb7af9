// SPDX-License-Identifier: Apache-2.0
// Vector loops of attention's gradient: one row of scores to weights, and their gradients to those
// of the scores.
#pragma once

#include <cstdint>

namespace anyop {

// A score is cap(scale x), cap(x) = softcap tanh(x / softcap); softcap 0: scale x.
template <typename T>
struct ScoreForm {
  T scale, softcap;
};

// x = exp(score - lse + bias), n numbers; bias may be nullptr. caps, where scores are capped: their
// derivative by scale x.
void WeightsOf(float* x, int64_t n, ScoreForm<float> form, const float* bias, float lse,
               float* caps);
void WeightsOf(double* x, int64_t n, ScoreForm<double> form, const double* bias, double lse,
               double* caps);

// grad = scale weight caps (grad - delta): gradients of the weights to those of x. caps may be
// nullptr: 1.
void SlopesOf(const float* weight, int64_t n, ScoreForm<float> form, const float* caps, float delta,
              float* grad);
void SlopesOf(const double* weight, int64_t n, ScoreForm<double> form, const double* caps,
              double delta, double* grad);

double DotOf(const float* a, const float* b, int64_t n);
double DotOf(const double* a, const double* b, int64_t n);

}  // namespace anyop
