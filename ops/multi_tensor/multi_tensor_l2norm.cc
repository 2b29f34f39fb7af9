// SPDX-License-Identifier: Apache-2.0
// multi_tensor_l2norm on the CPU: one read an element. The squares of each chunk are summed apart,
// the sums in order, so that the bits do not depend on the threads.
#include "anyop/ops/multi_tensor_l2norm.h"

#include <cmath>

#include "anyop/cpu_lists.h"

namespace anyop::cpu {
namespace {

ANYOP_CPU_CLONES double SquaresOf(const AnyopTensor& x, AnyopDtype wide, double factor,
                                  int64_t begin, int64_t count) {
  double total = 0;
  WithFloat(wide, [&](auto zero) {
    using Wide = decltype(zero);
    const auto scale = static_cast<Wide>(factor);
    for (int64_t done = 0; done < count; done += kBlock) {
      const int64_t n = count - done < kBlock ? count - done : kBlock;
      Elements<Wide> in(x, begin + done, n);
      const Wide* v = in.Read();
      Wide sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < n; ++i) sum += (v[i] * scale) * (v[i] * scale);
      total += static_cast<double>(sum);
    }
  });
  return total;
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_multi_tensor_l2norm_cpu(const MultiTensorL2normArgs* args,
                                                 AnyopCall* call) {
  using namespace anyop::cpu;
  const ListChunks chunks(call, args->x);
  if (int32_t status = chunks.status()) return status;
  auto* sums =
      static_cast<double*>(call->workspace(call, (chunks.count() + 1) * int64_t{sizeof(double)}));
  if (!sums) return kAnyopOutOfMemory;
  const AnyopDtype wide = AnyFloat64(args->x) ? kAnyopFloat64 : kAnyopFloat32;
  const double scale = ValueOf(args->scale, 1);
  chunks.ForEach(call, [&](int64_t chunk, int64_t k, int64_t begin, int64_t n) {
    sums[chunk] = SquaresOf(args->x.data[k], wide, scale, begin, n);
  });
  double total = 0;
  for (int64_t k = 0; k < args->N; ++k) {
    double sum = 0;
    for (int64_t i = chunks.First(k); i < chunks.First(k + 1); ++i) sum += sums[i];
    if (args->each) static_cast<float*>(args->each->data)[k] = static_cast<float>(std::sqrt(sum));
    total += sum;
  }
  *static_cast<float*>(args->total->data) = static_cast<float>(std::sqrt(total));
  return kAnyopOk;
}
