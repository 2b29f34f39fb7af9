// SPDX-License-Identifier: Apache-2.0
// multi_tensor_clip_grad_norm on the CPU: a read an element for the norm, and where that is too
// large another one and a write.
#include "anyop/ops/multi_tensor_clip_grad_norm.h"

#include "clip.h"
#include "cpu_norms.h"

namespace anyop::cpu {
namespace {

ANYOP_CPU_CLONES void Clip(const AnyopTensor& g, AnyopDtype wide, double factor, int64_t begin,
                           int64_t count) {
  WithFloat(wide, [&](auto zero) {
    using Wide = decltype(zero);
    const auto scale = static_cast<Wide>(factor);
    for (int64_t done = 0; done < count; done += kBlock) {
      const int64_t n = count - done < kBlock ? count - done : kBlock;
      Elements<Wide> elements(g, begin + done, n);
      elements.Read();
      Wide* x = elements.data();
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) x[i] *= scale;
      elements.Write();
    }
  });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_multi_tensor_clip_grad_norm_cpu(const MultiTensorClipGradNormArgs* args,
                                                         AnyopCall* call) {
  using namespace anyop::cpu;
  auto& total = *static_cast<float*>(args->total->data);
  if (args->norm) {
    total = static_cast<float>(ValueOf(args->norm, 0));
  } else if (int32_t status =
                 WriteNorms(call, args->g, nullptr, args->norm_type == 0, args->total, nullptr)) {
    return status;
  }
  const double factor = anyop::ClipFactor(ValueOf(args->max_norm, 0), total);
  if (factor == 1) return kAnyopOk;
  const ListChunks chunks(call, args->g);
  if (int32_t status = chunks.status()) return status;
  const AnyopDtype wide = AnyFloat64(args->g) ? kAnyopFloat64 : kAnyopFloat32;
  chunks.ForEach(call, [&](int64_t, int64_t k, int64_t begin, int64_t n) {
    Clip(args->g.data[k], wide, factor, begin, n);
  });
  return kAnyopOk;
}
