// SPDX-License-Identifier: Apache-2.0
// Convolutions with channels last and their gradients by oneDNN.
#pragma once

#include "../linear/dnnl.h"
#include "windows.h"

namespace anyop::dnnl {

// Whether dtype and sizes are such that oneDNN is asked: to make a primitive costs a millisecond.
bool IsWorth(const Windows& windows, int64_t K);

// Takes the sums of rows [first, first + rows) of results, on any thread.
using Store = void (*)(const void* context, int64_t first, int64_t rows, const float* sums);

// Each, of what IsWorth, says whether it was computed; false for what oneDNN has no fast kernel
// for: then the results hold anything. Sums are float32; parts are cut by shape alone, so that the
// bits do not depend on the number of threads. `windows` are those of x, K the number of results of
// a place.

// weights (K, R, S, C); the sums lie in `out` where it is given, else in memory of the thread.
bool Convolve(AnyopCall* call, const Library& library, const Windows& windows, int64_t K,
              const void* weights, float* out, Store store, const void* context);

// grad (N, out_height, out_width, K) and weights of the windows' dtype give grad_x, of it too.
bool GradientOfImages(AnyopCall* call, const Library& library, const Windows& windows, int64_t K,
                      const void* weights, const void* grad, void* grad_x);

// grad_weight (K, R, S, C).
bool GradientOfWeights(AnyopCall* call, const Library& library, const Windows& windows, int64_t K,
                       const void* grad, float* grad_weight);

}  // namespace anyop::dnnl
