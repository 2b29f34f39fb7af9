// SPDX-License-Identifier: Apache-2.0
// A thread packs one block of 32 factors of a result; neighbouring threads have neighbouring
// results (of plain weights neighbouring blocks). 16 bytes are read and 16 written for a block.
#include "anyop/cuda.h"
#include "w4_checkpoint.h"

namespace anyop::cuda {
namespace {

__global__ void PackW4(const w4::Checkpoint c, const w4::Format format, const int64_t blocks) {
  const int64_t first = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  const int64_t step = gridDim.x * int64_t{blockDim.x};
  const bool by_rows = format == w4::Format::kPlain;
  for (int64_t i = first; i < c.N * blocks; i += step) {
    const int64_t n = by_rows ? i / blocks : i % c.N, b = by_rows ? i % blocks : i / c.N;
    w4::PackBlock(c, format, n, b);
  }
  for (int64_t i = first; i < c.zero_words; i += step) c.zero[i] = w4::PackZeros(c, format, i);
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_w4_pack_cuda(const W4PackArgs* args, AnyopCall* call) {
  using namespace anyop;
  const w4::Format format = w4::FormatOf(args->format);
  const w4::Checkpoint c = w4::CheckpointOf(args, format);
  const int64_t blocks = (c.K + w4::kFactors - 1) / w4::kFactors;
  const int64_t work = c.N * blocks > c.zero_words ? c.N * blocks : c.zero_words;
  if (work == 0) return kAnyopOk;
  const int64_t grid = cuda::CeilDiv(work, 256);
  const cuda::Launch launch{dim3(static_cast<unsigned>(grid < 65536 ? grid : 65536)), dim3(256), 0};
  return launch.Run(call, cuda::PackW4, c, format, blocks);
}
