// SPDX-License-Identifier: Apache-2.0
// Norms of lists of tensors on the CPU. The squares of each chunk are added apart, the sums in
// order, so that the bits do not depend on the threads; of maxima likewise, NaN above everything.
#ifndef ANYOP_OPS_MULTI_TENSOR_CPU_NORMS_H_
#define ANYOP_OPS_MULTI_TENSOR_CPU_NORMS_H_

#include <cmath>

#include "anyop/cpu/lists.h"

namespace anyop::cpu {

inline double Join(bool maximum, double a, double b) {
  return maximum ? b > a || b != b ? b : a : a + b;
}

template <typename Wide>
inline double SquaresOf(const Wide* x, Wide scale, int64_t n) {
  Wide sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += (x[i] * scale) * (x[i] * scale);
  return static_cast<double>(sum);
}
template <typename Wide>
inline double MaximumOf(const Wide* x, Wide scale, int64_t n) {
  Wide largest = 0, nothing = 0;  // NaN where an element is
#pragma omp simd reduction(max : largest) reduction(+ : nothing)
  for (int64_t i = 0; i < n; ++i) {
    const Wide size = std::abs(x[i] * scale);
    largest = size > largest ? size : largest;
    nothing += size == size ? 0 : size;
  }
  return static_cast<double>(largest + nothing);
}

ANYOP_CPU_CLONES double PartOf(const AnyopTensor& x, AnyopDtype wide, double factor, bool maximum,
                               int64_t begin, int64_t count) {
  double total = 0;
  WithFloat(wide, [&](auto zero) {
    using Wide = decltype(zero);
    const auto scale = static_cast<Wide>(factor);
    for (int64_t done = 0; done < count; done += kBlock) {
      const int64_t n = count - done < kBlock ? count - done : kBlock;
      Elements<Wide> in(x, begin + done, n);
      const Wide* v = in.Read();
      total = Join(maximum, total, maximum ? MaximumOf(v, scale, n) : SquaresOf(v, scale, n));
    }
  });
  return total;
}

// Calls each(k, norm) for all tensors; *total is the norm of all.
template <typename Each>
int32_t FindNorms(AnyopCall* call, const AnyopTensorList& x, double scale, bool maximum,
                  double* total, const Each& each) {
  const ListChunks chunks(call, x);
  if (int32_t status = chunks.status()) return status;
  auto* parts =
      static_cast<double*>(call->workspace(call, (chunks.count() + 1) * int64_t{sizeof(double)}));
  if (!parts) return kAnyopOutOfMemory;
  const AnyopDtype wide = AnyFloat64(x) ? kAnyopFloat64 : kAnyopFloat32;
  chunks.ForEach(call, [&](int64_t chunk, int64_t k, int64_t begin, int64_t n) {
    parts[chunk] = PartOf(x.data[k], wide, scale, maximum, begin, n);
  });
  double all = 0;
  for (int64_t k = 0; k < x.count; ++k) {
    double part = 0;
    for (int64_t i = chunks.First(k); i < chunks.First(k + 1); ++i)
      part = Join(maximum, part, parts[i]);
    each(k, maximum ? part : std::sqrt(part));
    all = Join(maximum, all, part);
  }
  *total = maximum ? all : std::sqrt(all);
  return kAnyopOk;
}

// total and each (NULL: not asked for).
inline int32_t WriteNorms(AnyopCall* call, const AnyopTensorList& x, const AnyopTensor* scale,
                          bool maximum, AnyopTensor* total, AnyopTensor* each) {
  double all = 0;
  const int32_t status =
      FindNorms(call, x, ValueOf(scale, 1), maximum, &all, [&](int64_t k, double norm) {
        if (each) static_cast<float*>(each->data)[k] = static_cast<float>(norm);
      });
  if (!status) *static_cast<float*>(total->data) = static_cast<float>(all);
  return status;
}

}  // namespace anyop::cpu

#endif  // ANYOP_OPS_MULTI_TENSOR_CPU_NORMS_H_
