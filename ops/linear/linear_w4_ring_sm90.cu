// SPDX-License-Identifier: Apache-2.0
// linear_w4 of at most eight rows in 16 bits on Hopper: see weight_ring.h. Scales and zero points
// come with weight; what is multiplied, the difference from the zero point, is exact, and the
// float32 sum of 128 factors is scaled.
#include "anyop/ops/linear_w4.h"
#include "w4_thin.h"
#include "weight_ring.h"

namespace anyop::cuda {
namespace {

template <typename T, bool kHasZero, bool kOneRow, int kWarps_>
struct FourBitWeight {
  using Sum = float;
  static constexpr bool kHasOneRow = kOneRow, kIsGated = false;
  static constexpr int kWarps = kWarps_, kPieces = 2, kStages = kWarps == 16 ? 4 : 3;
  static constexpr int kXVectors = 4;
  static constexpr int kPieceFactors = 2 * kRingPieceBytes;
  static constexpr int kZeros = 64, kEndBytes = 128;  // a word of each lane

  __host__ __device__ static int Bytes(int factors) { return factors / 2; }
  __device__ static const uint8_t* WeightOf(const TileProblem& p) { return p.four_bits.weight; }

  // Lane l < 16 copies the word with the scale of row l, lanes 16 and 17 zero points of eight rows,
  // where there are some; others copy the last row's scale.
  class Ends {
   public:
    __device__ explicit Ends(const TileProblem& p) {
      const FourBits& w = p.four_bits;
      const int lane = threadIdx.x % 32, left = blockIdx.x * kRingRows;
      if (kHasZero && lane / 2 == 8) {
        from_ = reinterpret_cast<const uint8_t*>(w.zero + (left / 8 + lane % 2) * w.zero_step);
        apart_ = 4 * static_cast<uint32_t>(w.zero_row);
        to_next_tile_ = gridDim.x * (kRingRows / 8) * 4 * w.zero_step;
      } else {
        const int scale_bytes = w.scale_type == kAnyopFloat32 ? 4 : 2;
        from_ = static_cast<const uint8_t*>(w.scale) +
                ((left + Lesser(lane, 15)) * int64_t{scale_bytes} & ~int64_t{3});
        apart_ = w.N * scale_bytes;
        to_next_tile_ = gridDim.x * kRingRows * scale_bytes;
      }
      shift_ = w.group < w.K ? __ffs(static_cast<int>(w.group) / kPieceFactors) - 1 : 31;
    }
    __device__ void Copy(uint32_t piece, uint32_t to) const {
      CopyWordAside(to + 4 * (threadIdx.x % 32), from_ + uint64_t{piece >> shift_} * apart_);
    }
    __device__ void NextTile() { from_ += to_next_tile_; }

   private:
    const uint8_t* from_;   // of the first group
    int64_t to_next_tile_;  // in bytes, as
    uint32_t apart_;        // from there to the next group's
    int shift_;             // 1 << shift_ pieces are a group
  };

  __device__ static void Add(const TileProblem& p, const uint32_t (&low)[4],
                             const uint32_t (&high)[4], const uint32_t (&x)[4][4], uint32_t ends,
                             float (&sums)[4]) {
    const int r = threadIdx.x % 32 / 4;
    const int zero[2] = {ZeroIn(ends, r), ZeroIn(ends + 4, r)};
    float part[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int s = 0; s < 4; s += 2) {  // so that x lies in neighbouring registers
        const uint32_t a[4] = {
            LessZero(T(), low[s], i, zero[0]), LessZero(T(), high[s], i, zero[1]),
            LessZero(T(), low[s + 1], i, zero[0]), LessZero(T(), high[s + 1], i, zero[1])};
        MultiplyAdd<kOperandOf<T>>(part, a, x[i][s], x[i][s + 1]);
      }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float scale = ScaleIn(p, ends, r + 8 * half);
      sums[2 * half] = MulAdd(part[2 * half], scale, sums[2 * half]);
      sums[2 * half + 1] = MulAdd(part[2 * half + 1], scale, sums[2 * half + 1]);
    }
  }

 private:
  __device__ static float ScaleIn(const TileProblem& p, uint32_t ends, int row) {
    const uint32_t word = LoadSharedWord(ends + 4 * row);
    const float half = row % 2 ? WidenHigh(T(), word) : WidenLow(T(), word);
    return p.four_bits.scale_type == kAnyopFloat32 ? __uint_as_float(word) : half;
  }
  __device__ static int ZeroIn(uint32_t ends, int row) {
    return kHasZero ? LoadSharedWord(ends + kZeros) >> 4 * row & 15 : w4::kMiddle;
  }
};

template <typename T, bool kHasZero>
struct FourBitWeights {
  template <bool kOneRow, int kWarps>
  using Of = FourBitWeight<T, kHasZero, kOneRow, kWarps>;
  static int LongRow(int) { return 8192; }
};

template <typename T>
int32_t RunRingW4(AnyopCall* call, const TileProblem& p) {
  const FourBits& w = p.four_bits;
  const bool is_power = w.group % 128 == 0 && !(w.group & (w.group - 1));
  if ((w.group < w.K && !is_power) || !IsAligned(w.scale, 4) || w.zero_row > 1 << 28)
    return call->fail(call, kAnyopDeclined, "its groups are no 128, 256, 512, ... factors");
  return w.zero ? RunByRing<FourBitWeights<T, true>>(call, p)
                : RunByRing<FourBitWeights<T, false>>(call, p);
}

}  // namespace
}  // namespace anyop::cuda

// Their conditions say: one row, or at most eight by at most 4096 results; K a multiple of 256, N
// of 16, x and weight aligned to 16 bytes.
extern "C" int32_t anyop_linear_w4_cuda_ring_sm90(const LinearW4Args* args, AnyopCall* call) {
  using namespace anyop::cuda;
  const int64_t N = args->N, K = 2 * args->J;
  TileProblem p;
  if (int32_t status =
          PlainProblem(call, args->x, args->weight, args->bias, args->out, args->rows, N, K, &p))
    return status;
  if (p.rows == 0) return kAnyopOk;
  p.four_bits = FourBitsOf(args->weight, args->scale, args->zero, args->group_size, N, K);
  return p.result == kAnyopFloat16 ? RunRingW4<__half>(call, p) : RunRingW4<__nv_bfloat16>(call, p);
}
extern "C" int32_t anyop_linear_w4_cuda_ring_rows_sm90(const LinearW4Args* args, AnyopCall* call) {
  return anyop_linear_w4_cuda_ring_sm90(args, call);
}
