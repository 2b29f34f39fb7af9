// SPDX-License-Identifier: Apache-2.0
// A thread writes eight neighbouring numbers; four threads read the 16 bytes of a block. Computed
// in float32, rounded once.
#include "anyop/ops/w4_unpack.h"
#include "w4_cuda.h"

namespace anyop::cuda {
namespace {

template <typename T>
__device__ void StoreEight(T* to, int count, const float (&values)[8], bool aligned) {
  if constexpr (sizeof(T) == 2) {
    if (aligned && count == 8) {
      uint4 words;
      words.x = NarrowTwo(T(), values[0], values[1]),
      words.y = NarrowTwo(T(), values[2], values[3]);
      words.z = NarrowTwo(T(), values[4], values[5]),
      words.w = NarrowTwo(T(), values[6], values[7]);
      *reinterpret_cast<uint4*>(to) = words;
      return;
    }
  }
#pragma unroll
  for (int j = 0; j < 8; ++j)
    if (j < count) to[j] = Narrow<T>(values[j]);
}

template <typename T>
__global__ void UnpackW4(const FourBits w, T* out, const int64_t pieces, const bool aligned) {
  const int64_t step = gridDim.x * int64_t{blockDim.x};
  for (int64_t at = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; at < w.N * pieces; at += step) {
    const int n = static_cast<int>(at / pieces), k = static_cast<int>(at % pieces) * 8;
    const int i = k % w4::kFactors / 8, first = k - k % w4::kFactors, group = GroupOf(w, first);
    const float scale = ScaleOf(w, group, n), zero = static_cast<float>(ZeroOf(w, group, n));
    float values[8];
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const uint32_t word = WordOf(w, n, first, t);
      values[2 * t] = (LowOf(word, i) - zero) * scale;
      values[2 * t + 1] = (HighOf(word, i) - zero) * scale;
    }
    StoreEight(out + int64_t{n} * w.K + k, w.K - k < 8 ? w.K - k : 8, values, aligned);
  }
}

template <typename T>
int32_t RunUnpack(AnyopCall* call, const W4UnpackArgs* args) {
  const int64_t K = 2 * args->J, pieces = CeilDiv(K, 8);
  if (args->N == 0 || K == 0) return kAnyopOk;
  if (args->N > 0x7fffffff || K > 0x7ffffff0)
    return call->fail(call, kAnyopDeclined, "it counts less than 2^31 rows and columns");
  const FourBits w =
      FourBitsOf(args->weight, args->scale, args->zero, args->group_size, args->N, K);
  const bool aligned = K % 8 == 0 && reinterpret_cast<uintptr_t>(args->out->data) % 16 == 0;
  const int64_t grid = CeilDiv(args->N * pieces, 256);
  const Launch launch{dim3(static_cast<unsigned>(grid < 65536 ? grid : 65536)), dim3(256), 0};
  return launch.Run(call, UnpackW4<T>, w, static_cast<T*>(args->out->data), pieces, aligned);
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_w4_unpack_cuda(const W4UnpackArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  switch (AnyopDtypeOf(args->out)) {
    case kAnyopFloat32:
      return RunUnpack<float>(call, args);
    case kAnyopFloat16:
      return RunUnpack<__half>(call, args);
    default:
      return RunUnpack<__nv_bfloat16>(call, args);
  }
}
