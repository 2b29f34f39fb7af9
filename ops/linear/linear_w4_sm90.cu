// SPDX-License-Identifier: Apache-2.0
// linear_w4 of up to 64 rows on Hopper, bound by the bytes of weight: wgmma's 64 rows are weight's,
// its columns rows of x.
//
// As in thin_sm90.h a cluster of up to 8 blocks computes a tile, here 128 rows of weight, each
// block its own part of K. One warp brings stages of 256 factors by TMA: weight as it is, x,
// scales, zero points. Two warpgroups unpack weight into registers, the left operand of wgmma, less
// its zero points, which is exact; the float32 sum of 128 factors is scaled. While the products of
// 128 run, the next are unpacked.
#include "anyop/ops/linear_w4.h"
#include "thin_sm90.h"
#include "w4_thin.h"

namespace anyop::cuda {
namespace {

// A stage is kBlocks of 128 factors, of which each pair of warpgroups, for both 64 rows, has kMine.
template <int kTokens>
struct W4Shape {
  static constexpr int kParts = kTokens == 64 ? 1 : 2, kBlocks = kTokens == 16 ? 4 : 2;
  static constexpr int kMine = kBlocks / kParts, kRows = 128, kDepth = 128 * kBlocks;
  using Sums = ClusterSums<float, 2, kTokens, kParts>;
  static constexpr int kWeightBoxes = kBlocks / 2, kXBoxes = 2 * kBlocks;  // of 128 bytes of k
  static constexpr uint32_t kWeightBytes = kRows * 128, kXBytes = kTokens * 128;  // of a box
  static constexpr uint32_t kX = kWeightBoxes * kWeightBytes;
  static constexpr uint32_t kStageBytes = kX + kXBoxes * kXBytes;
  static constexpr uint32_t kScaleBytes = kRows * 4, kZeroBytes = kRows / 8 * 4;  // of a block
  static constexpr uint32_t kZeros = kBlocks * kScaleBytes;
  static constexpr uint32_t kEndBytes = kZeros + kBlocks * kZeroBytes;
  static constexpr uint32_t kMostBytes = 227 * 1024 - 256 - 2 * Sums::kBytes;
  static constexpr int kStages = kMostBytes / (kStageBytes + kEndBytes);
  static constexpr uint32_t kReceived = kStages * kStageBytes;
  static constexpr uint32_t kEnds = kReceived + 2 * Sums::kBytes;
  static constexpr uint32_t kBarriers = kEnds + kStages * kEndBytes;
  static constexpr uint32_t kSharedBytes = kBarriers + 256;
  static constexpr int kThreads = 128 + Sums::kAdders;
  static_assert(16 * kStages + 16 <= 256);
};

struct W4Maps {
  CUtensorMap x, weight;
};

// Stages [first, last) of every tile of this cluster, by one thread.
template <int kTokens>
__device__ void LoadStages(const W4Maps& maps, const FourBits& w, uint32_t shared, int first,
                           int last) {
  using Shape = W4Shape<kTokens>;
  const uint32_t full = shared + Shape::kBarriers, empty = full + 8 * Shape::kStages;
  const uint64_t once = ReadOnce(), by_all = ReadByAll();
  const int scale_bytes = w.scale_type == kAnyopFloat32 ? 4 : 2;
  RingPlace<Shape::kStages> at;
  for (int left = ClusterIndex() * Shape::kRows; left < w.N;
       left += ClusterCount() * Shape::kRows) {
    const int rows = Lesser(Shape::kRows, w.N - left);
    const uint32_t end_bytes = rows * scale_bytes + (w.zero ? rows / 8 * 4 : 0);
    for (int k = first; k < last; ++k, at.Next()) {
      const uint32_t stage = shared + at.stage * Shape::kStageBytes, barrier = full + 8 * at.stage;
      WaitAt(empty + 8 * at.stage, at.parity ^ 1);
      ArriveForBytes(barrier, Shape::kStageBytes + Shape::kBlocks * end_bytes);
#pragma unroll
      for (int h = 0; h < 2 * Shape::kWeightBoxes; ++h)
        LoadBox(stage + h * 64 * 128, &maps.weight, barrier,
                (k * Shape::kWeightBoxes + h / 2) * 128, left + h % 2 * 64, once);
#pragma unroll
      for (int h = 0; h < Shape::kXBoxes; ++h)
        LoadBox(stage + Shape::kX + h * Shape::kXBytes, &maps.x, barrier,
                k * Shape::kDepth + 64 * h, 0, by_all);
#pragma unroll
      for (int h = 0; h < Shape::kBlocks; ++h) {
        const uint32_t to = shared + Shape::kEnds + at.stage * Shape::kEndBytes;
        const int64_t group = GroupOf(w, Lesser(k * Shape::kDepth + 128 * h, w.K - 1));
        LoadBytes(to + h * Shape::kScaleBytes,
                  static_cast<const uint8_t*>(w.scale) + (group * w.N + left) * scale_bytes,
                  barrier, rows * scale_bytes);
        if (w.zero)
          LoadBytes(to + Shape::kZeros + h * Shape::kZeroBytes,
                    w.zero + group * w.zero_row + left / 8, barrier, rows / 8 * 4);
      }
    }
  }
}

// A thread's rows of a tile, `row` and eight on, of 128 factors: unpacked, and their scales.
template <typename T>
struct W4Rows {
  uint32_t pairs[8][4];  // of 16 factors each, as wgmma takes them
  float scale[2];

  // Block h of a stage; weight: the 64 rows of the warpgroup; ends: of the stage.
  template <int kTokens>
  __device__ void Unpack(const FourBits& w, const uint8_t* weight, const uint8_t* ends, int h,
                         int row, int first_row) {
    using Shape = W4Shape<kTokens>;
    const int t = threadIdx.x & 3;
    int zero[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = first_row + row + 8 * i;
      const uint8_t* of = ends + h * Shape::kScaleBytes;
      scale[i] = w.scale_type == kAnyopFloat32 ? reinterpret_cast<const float*>(of)[r]
                 : w.scale_type == kAnyopFloat16
                     ? Widen(reinterpret_cast<const __half*>(of)[r])
                     : Widen(reinterpret_cast<const __nv_bfloat16*>(of)[r]);
      const auto* zeros =
          reinterpret_cast<const int32_t*>(ends + Shape::kZeros + h * Shape::kZeroBytes);
      zero[i] = w.zero ? w4::ZeroOf(zeros, 1, r) : w4::kMiddle;
    }
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      uint32_t word[2];
#pragma unroll
      for (int i = 0; i < 2; ++i)
        word[i] = *reinterpret_cast<const uint32_t*>(weight + h / 2 * Shape::kWeightBytes +
                                                     Swizzled(row + 8 * i, h % 2 * 4 + b) + 4 * t);
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          pairs[2 * b + j / 2][j % 2 * 2 + i] = LessZero(T(), word[i], j, zero[i]);
    }
  }
  // All pairs are there before this, and none is written anew: products that run read them.
  __device__ void Pin() {
#pragma unroll
    for (int i = 0; i < 32; ++i) asm volatile("" : "+r"(pairs[i / 4][i % 4])::"memory");
  }
};

template <typename T, int kTokens>
__global__ __launch_bounds__((W4Shape<kTokens>::kThreads),
                             1) void MultiplyW4(const __grid_constant__ W4Maps maps,
                                                const __grid_constant__ ThinProblem p,
                                                const int blocks) {
  using Shape = W4Shape<kTokens>;
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t ring = SharedAddress(shared);
  const uint32_t full = ring + Shape::kBarriers, empty = full + 8 * Shape::kStages;
  const uint32_t sent = empty + 8 * Shape::kStages;
  const int rank = static_cast<int>(ClusterRank());
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shape::kStages; ++i) {
      InitBarrier(full + 8 * i, 1);
      InitBarrier(empty + 8 * i, Shape::Sums::kAdders / 32);
    }
    InitBarrier(sent, 1), InitBarrier(sent + 8, 1);
    FenceBarriers();
    PrefetchMap(&maps.x), PrefetchMap(&maps.weight);
  }
  ClusterSync();
  const int steps = (p.w.K + Shape::kDepth - 1) / Shape::kDepth;
  const int first = steps * rank / blocks, last = steps * (rank + 1) / blocks;
  if (threadIdx.x < 128) {
    GiveRegisters<40>();
    if (threadIdx.x == 0) {
      // Another kernel may still write weight: not to shared memory.
      const int left = ClusterIndex() * Shape::kRows;
      const int ahead = min(last, first + Shape::kStages) * Shape::kWeightBoxes;
      for (int k = first * Shape::kWeightBoxes; k < ahead && left < p.w.N; ++k)
        PrefetchBox(&maps.weight, k * 128, left), PrefetchBox(&maps.weight, k * 128, left + 64);
      WaitForWork();
      LoadStages<kTokens>(maps, p.w, ring, first, last);
      LetNextStart();
    }
  } else {
    TakeRegisters<Shape::kParts == 1 ? 232 : 104>();
    WaitForWork();
    constexpr int kSums = kTokens / 2, kBuffers = Shape::kParts == 1 ? 2 : 1;
    const int adder = threadIdx.x - 128, w = adder / 128 % 2, part_of = adder / 256;
    const int lane = adder & 31, row = adder % 128 / 32 * 16 + lane / 4;
    typename Shape::Sums all(shared + Shape::kReceived, sent, rank, blocks);
    RingPlace<Shape::kStages> at;
    for (int left = ClusterIndex() * Shape::kRows; left < p.w.N;
         left += ClusterCount() * Shape::kRows) {
      float sums[kSums] = {}, part[kSums] = {};
      W4Rows<T> rows[kBuffers] = {};
      // What the products of a buffer have summed, once they have ended.
      const auto add = [&](int buffer) {
        WaitForProducts<0>();
        Pin(part);
        rows[buffer].Pin();
#pragma unroll
        for (int i = 0; i < kSums; ++i)
          sums[i] = MulAdd(part[i], rows[buffer].scale[i / 2 % 2], sums[i]);
      };
      uint32_t before = 0;
      for (int k = first; k < last; ++k, at.Next()) {
        const uint32_t stage = at.stage * Shape::kStageBytes;
        WaitAt(full + 8 * at.stage, at.parity);
#pragma unroll
        for (int j = 0; j < Shape::kMine; ++j) {
          const int h = part_of * Shape::kMine + j;
          const auto end_last = [&] {
            add((j + kBuffers - 1) % kBuffers);
            if (j > 0 || k == first) return;
            __syncwarp();
            if (lane == 0) Arrive(empty + 8 * before);
          };
          if (kBuffers == 1) end_last();
          auto& mine = rows[j % kBuffers];
          mine.template Unpack<kTokens>(p.w, shared + stage + w * 64 * 128,
                                        shared + Shape::kEnds + at.stage * Shape::kEndBytes, h, row,
                                        w * 64);
          if (kBuffers == 2) end_last();
          mine.Pin();
          FenceProducts();
#pragma unroll
          for (int i = 0; i < 8; ++i)
            Product<kTokens>::template AddRegisters<kOperandOf<T>, 0>(
                part, mine.pairs[i],
                TileOf(ring + stage + Shape::kX + (2 * h + i / 4) * Shape::kXBytes) + 2 * (i % 4),
                i);
          CommitProducts();
        }
        before = at.stage;
      }
      add(kBuffers - 1);
      __syncwarp();
      if (lane == 0) Arrive(empty + 8 * before);
      all.Exchange(sums);
      for (int i = adder; i < 2 * all.rows() * kTokens; i += Shape::Sums::kAdders) {
        const int r = i & (all.rows() - 1), half = (i >> all.shift()) % 2;
        const int token = (i >> all.shift()) / 2, n = left + half * 64 + rank * all.rows() + r;
        if (token >= p.rows || n >= p.w.N) continue;
        const float bias = p.bias ? Widen(static_cast<const T*>(p.bias)[n]) : 0;
        static_cast<T*>(p.out)[int64_t{token} * p.w.N + n] =
            Narrow<T>(all.Of(half, r, token) + bias);
      }
    }
  }
  __syncwarp();
  ClusterSync();
}

// Whether scales and zero points are rows that TMA reads, and a scale is of 128 factors or more.
bool TakesTma(const ThinProblem& p) {
  const FourBits& w = p.w;
  const int64_t scale_bytes = w.scale_type == kAnyopFloat32 ? 4 : 2;
  const bool has_zeros = !w.zero || (w.zero_step == 1 && w.N % 32 == 0 && w.zero_row % 4 == 0 &&
                                     IsAligned(w.zero, 16));
  return has_zeros && w.aligned && w.N <= 0x7fff0000 && (w.group % 128 == 0 || w.group >= w.K) &&
         w.N * scale_bytes % 16 == 0 && IsAligned(w.scale, 16) && IsAligned(p.x, 16);
}

// Choices: 1, 2, 4, 8 blocks a cluster; else as many as let all multiprocessors end soonest, where
// a tile costs as much as 512 factors more.
template <typename T, int kTokens>
int32_t RunW4(AnyopCall* call, const ThinProblem& p) {
  using Shape = W4Shape<kTokens>;
  W4Maps maps;
  if (!TakesTma(p) || !EncodeRows(&maps.x, kOperandOf<T>, p.x, p.rows, p.w.K, kTokens) ||
      !EncodeRows(&maps.weight, Operand::kInt8, p.w.weight, p.w.N, p.w.K / 2, 64))
    return call->fail(call, kAnyopDeclined,
                      "its groups are no multiples of 128 factors, or its rows, scales or zero "
                      "points are not aligned to 16 bytes");
  constexpr auto kernel = MultiplyW4<T, kTokens>;
  if (int32_t status = AllowShared<kernel>(call, Shape::kSharedBytes)) return status;
  Limits limits;
  if (int32_t status = ReadLimits(call, &limits)) return status;
  static std::atomic<int> known[64][4];
  const int64_t steps = CeilDiv(p.w.K, Shape::kDepth), tiles = CeilDiv(p.w.N, Shape::kRows);
  Launch best{dim3(0), dim3(Shape::kThreads), Shape::kSharedBytes, true, 1};
  int64_t least = 0;
  const int asked = AnyopChoice(call);
  for (int i = 0; i < 4 && 1 << i <= steps; ++i) {
    int clusters = limits.multiprocessors;
    Launch launch = best;
    launch.cluster = 1 << i;
    launch.grid = dim3(1 << i);
    if (i > 0)
      if (int32_t status =
              ClustersOf(call, kernel, launch, &known[call->device_id & 63][i], &clusters))
        return status;
    if (clusters == 0) continue;
    const int64_t each = CeilDiv(steps, int64_t{1} << i) * Shape::kDepth + 512;
    const int64_t time = CeilDiv(tiles, int64_t{clusters}) * each;
    if (i > 0 && asked != i && time >= least) continue;
    const int64_t used = tiles < clusters ? tiles : clusters;
    best.cluster = 1 << i;
    best.grid = dim3(static_cast<unsigned>(used << i));
    least = asked == i ? 0 : time;
  }
  return best.Run(call, kernel, maps, p, best.cluster);
}

template <typename T>
int32_t RunW4Rows(AnyopCall* call, const ThinProblem& p) {
  if (p.rows <= 16) return RunW4<T, 16>(call, p);
  return p.rows <= 32 ? RunW4<T, 32>(call, p) : RunW4<T, 64>(call, p);
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_linear_w4_cuda_sm90(const LinearW4Args* args, AnyopCall* call) {
  using namespace anyop::cuda;
  const int64_t M = args->rows, N = args->N, K = 2 * args->J;
  if (int32_t status = CheckCounts(call, M, N, K)) return status;
  if (N == 0) return kAnyopOk;
  const ThinProblem p = ThinProblemOf(*args);
  return p.type == kAnyopFloat16 ? RunW4Rows<__half>(call, p) : RunW4Rows<__nv_bfloat16>(call, p);
}
