// SPDX-License-Identifier: Apache-2.0
// linear_w8a8 of at most eight rows on Hopper, bound by the bytes of weight.
//
// A block has 16 rows of weight, the long side of mma.sync. Its eight warps share K, each takes
// every eighth 256 bytes, all of which are on their way at once, and their sums are added in their
// order: a row's bits do not depend on the other rows. 8-bit floats are multiplied as float16,
// which holds them exactly, and added in float32.
#include "anyop/cuda/mma.h"
#include "scaled_problem.h"

namespace anyop::cuda {
namespace {

constexpr int kFewWarps = 8, kFewPieces = 4, kFewBytes = 64 * kFewPieces;  // of a row, of a batch

// 16 bytes, read here and once: they leave the first cache to x.
__device__ inline uint4 LoadOnce(const uint8_t* from) {
#if ANYOP_PTX
  uint4 bits;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
               : "l"(from)
               : "memory");
  return bits;
#else
  return *reinterpret_cast<const uint4*>(from);
#endif
}

// Products of 16 bytes of two rows of weight and of x. Which factors stand in which place of
// mma.sync is free, as long as those of x stand in the same.
template <Operand kType>
__device__ void AddPiece(typename SumOf<kType>::Type (&sums)[4], const uint4& low,
                         const uint4& high, const uint4& x) {
  const uint32_t lows[4] = {low.x, low.y, low.z, low.w};
  const uint32_t highs[4] = {high.x, high.y, high.z, high.w}, of_x[4] = {x.x, x.y, x.z, x.w};
  if constexpr (kType == Operand::kInt8) {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const uint32_t of_weight[4] = {lows[i], highs[i], lows[i + 1], highs[i + 1]};
      MultiplyAdd<kType>(sums, of_weight, of_x[i], of_x[i + 1]);
    }
  } else {
    const auto wide = [](uint32_t four, int half) {
      return WidenTwo<kType>(half ? four >> 16 : four & 0xffff);
    };
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t of_weight[4] = {wide(lows[i], 0), wide(highs[i], 0), wide(lows[i], 1),
                                     wide(highs[i], 1)};
      MultiplyAdd<Operand::kFloat16>(sums, of_weight, wide(of_x[i], 0), wide(of_x[i], 1));
    }
  }
}

template <Operand kType>
__global__ __launch_bounds__(32 * kFewWarps,
                             3) void MultiplyFew(const __grid_constant__ TileProblem p) {
  using Sum = typename SumOf<kType>::Type;
  __shared__ Sum parts[kFewWarps][128];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int left = blockIdx.x * 16, r = lane / 4;
  const auto* weight = static_cast<const uint8_t*>(p.weight);
  const uint8_t* const low = weight + int64_t{Lesser(left + r, p.N - 1)} * p.K;
  const uint8_t* const high = weight + int64_t{Lesser(left + r + 8, p.N - 1)} * p.K;
  const uint8_t* const x = static_cast<const uint8_t*>(p.x) + int64_t{r} * p.K;
  WaitForWork();
  LetNextStart();
  Sum sums[4] = {};
  for (int begin = warp * kFewBytes; begin < p.K; begin += kFewWarps * kFewBytes) {
    uint4 lows[kFewPieces], highs[kFewPieces], of_x[kFewPieces];
#pragma unroll
    for (int i = 0; i < kFewPieces; ++i) {
      const int at = begin + 64 * i + 16 * (lane % 4);
      const bool is_there = at < p.K;
      lows[i] = is_there ? LoadOnce(low + at) : uint4{};
      highs[i] = is_there ? LoadOnce(high + at) : uint4{};
      of_x[i] = is_there && r < p.rows ? LoadNow(reinterpret_cast<const uint4*>(x + at)) : uint4{};
    }
#pragma unroll
    for (int i = 0; i < kFewPieces; ++i) AddPiece<kType>(sums, lows[i], highs[i], of_x[i]);
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) parts[warp][4 * lane + c] = sums[c];
  __syncthreads();
  const int column = thread % 16, row = thread / 16;
  if (row >= p.rows || left + column >= p.N) return;
  const int at = (row / 2 + column % 8 * 4) * 4 + row % 2 + column / 8 * 2;
  Sum sum = 0;
#pragma unroll
  for (int w = 0; w < kFewWarps; ++w) sum += parts[w][at];
  StoreOne(p.result, p.out, row * int64_t{p.N} + left + column,
           Finish(static_cast<float>(sum), RowScale(p, row), EndOf(p, 0, left + column)));
}

template <Operand kType>
int32_t RunFew(AnyopCall* call, const TileProblem& p) {
  const Launch launch{dim3(static_cast<unsigned>(CeilDiv(p.N, 16))), dim3(32 * kFewWarps), 0, true};
  return launch.Run(call, MultiplyFew<kType>, p);
}

}  // namespace
}  // namespace anyop::cuda

// Its conditions say: at most eight rows, K a multiple of 16, aligned to 16 bytes.
extern "C" int32_t anyop_linear_w8a8_cuda_few_sm90(const LinearW8a8Args* args, AnyopCall* call) {
  using namespace anyop::cuda;
  TileProblem p;
  if (int32_t status = ScaledProblem(call, args, &p)) return status;
  if (p.rows == 0 || p.N == 0) return kAnyopOk;
  switch (AnyopDtypeOf(args->x)) {
    case kAnyopInt8:
      return RunFew<Operand::kInt8>(call, p);
    case kAnyopFloat8E4M3FN:
      return RunFew<Operand::kE4M3>(call, p);
    default:
      return RunFew<Operand::kE5M2>(call, p);
  }
}
