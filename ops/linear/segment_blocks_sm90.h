// SPDX-License-Identifier: Apache-2.0
// Products of segments of e4m3 with scales of blocks on Hopper, bound by the bytes of weight: one
// warpgroup that loads and two that multiply by wgmma, scale and store.
//
// As in segment_sm90.h wgmma's rows are the weight's and its columns those of x, a segment is cut
// into equally high tiles of at most 128 rows, and next to nothing is multiplied in vain; blocks
// are persistent, but alone. A tile has 128 rows of two blocks of weight; a stage of the ring is
// one step of scales, 128 terms, 48 KiB. Each warpgroup has half of both blocks' rows, one after
// the other: while it scales and adds, the other multiplies. No sum is split, so a row's bits
// depend neither on other rows nor on their number.
#pragma once

#include "../quant/quantize_cuda.h"
#include "segment_sm90.h"

namespace anyop::cuda {
namespace {

// Results of 16 bits, of 16 or 32, or gated, activated and quantised again, with a scale for each
// 128 columns of a row.
enum class BlockEnd { k16Bits, kFloats, kCodes };

struct BlockSegmentShape {
  static constexpr int kTokens = 128, kDepth = 128, kStages = 4, kBuffers = 2;
  static constexpr int kScalers = 2;  // warps, one for each block of weight
  static constexpr uint32_t kHalfBytes = 128 * 128, kWeightBytes = 2 * kHalfBytes;
  static constexpr uint32_t kStageBytes = kWeightBytes + kTokens * 128;
  static constexpr uint32_t kPieceBytes = 32 * 128;  // 32 rows x 64 results of 16 bits
  static constexpr uint32_t kResults = kStages * kStageBytes;
  static constexpr uint32_t kScales = kResults + 2 * kBuffers * kPieceBytes;
  static constexpr uint32_t kMosts = kScales + kStages * 2 * kTokens * 4;
  static constexpr uint32_t kBarriers = kMosts + 9 * kTokens * 4;
  static constexpr uint32_t kSharedBytes = kBarriers + 256;
};

// Brings the products of both scales of a tile's stages, of one of its two blocks of weight; by a
// warp.
template <int kStages>
__device__ void ScaleStages(const TileProblem& p, const BlockRows& rows, const float* of_x,
                            const float* of_weight, float* to, uint32_t full, uint32_t empty,
                            RingPlace<kStages>* at) {
  using Shape = BlockSegmentShape;
  const int lane = threadIdx.x & 31, steps = (p.K + 127) / 128;
  int64_t row[Shape::kTokens / 32];
#pragma unroll
  for (int i = 0; i < Shape::kTokens / 32; ++i)
    row[i] = Lesser(rows.row + lane + 32 * i, rows.end - 1) * p.x_scale_row;
  for (int k = 0; k < steps; ++k, at->Next()) {
    float scale[Shape::kTokens / 32];
    const float by = of_weight[k * p.weight_scale_k];
#pragma unroll
    for (int i = 0; i < Shape::kTokens / 32; ++i)
      if (32 * i < rows.count) scale[i] = of_x[row[i] + k * p.x_scale_k] * by;
    WaitAt(empty + 8 * at->stage, at->parity ^ 1);
#pragma unroll
    for (int i = 0; i < Shape::kTokens / 32; ++i)
      if (32 * i < rows.count) to[at->stage * 2 * Shape::kTokens + lane + 32 * i] = scale[i];
    Arrive(full + 8 * at->stage);
  }
}

// By 256 threads: hidden features of 128 columns, as two warpgroups hold them, become codes.
class CodeWriter {
 public:
  static constexpr int kTokens = BlockSegmentShape::kTokens;

  // codes: kTokens rows of 128 bytes; mosts: 9 rows of kTokens floats.
  __device__ CodeWriter(uint8_t* codes, float* mosts)
      : codes_(codes), mosts_(mosts), thread_(threadIdx.x - 128) {}

  // v: Product's sums, all 128 rows of weight by rows.count.
  __device__ void Write(const float (&v)[kTokens / 2], const TileProblem& p, const BlockRows& rows,
                        int column) const {
    const int lane = thread_ & 31;
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
      if (8 * j >= rows.count) break;
      float most[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        most[i] = GreaterMagnitude()(GreaterMagnitude()(0, v[4 * j + i]), v[4 * j + 2 + i]);
#pragma unroll
        for (int step = 4; step < 32; step *= 2)
          most[i] = GreaterMagnitude()(most[i], __shfl_xor_sync(~0u, most[i], step));
      }
      if (lane < 4)
        *reinterpret_cast<float2*>(mosts_ + thread_ / 32 * kTokens + 8 * j + 2 * lane) =
            make_float2(most[0], most[1]);
    }
    MeetAt(kTurns, 256);
    if (thread_ < rows.count) WriteScale(p, rows, column);
    MeetAt(kTurns, 256);
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
      if (8 * j >= rows.count) break;
      const int token = 8 * j + lane % 4 * 2;
      const float2 by = *reinterpret_cast<const float2*>(mosts_ + 8 * kTokens + token);
      const unsigned four =
          FourE4M3(v[4 * j] * by.x, v[4 * j + 1] * by.y, v[4 * j + 2] * by.x, v[4 * j + 3] * by.y);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        codes_[Swizzled(token + i % 2, thread_ / 32) + lane / 4 + i / 2 * 8] =
            static_cast<uint8_t>(four >> 8 * i);
    }
    MeetAt(kTurns, 256);
    for (int i = thread_; i < 8 * (rows.end - rows.row); i += 256)
      *reinterpret_cast<uint4*>(static_cast<uint8_t*>(p.out) + int64_t{rows.row + i / 8} * p.N +
                                128 * column + i % 8 * 16) =
          *reinterpret_cast<const uint4*>(codes_ + Swizzled(i / 8, i % 8));
  }

 private:
  // Of a row for each thread.
  __device__ void WriteScale(const TileProblem& p, const BlockRows& rows, int column) const {
    float most = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) most = GreaterMagnitude()(most, mosts_[i * kTokens + thread_]);
    const Scale scale = Scale::Of(most, kGreatestE4M3, 1 / kGreatestE4M3);
    mosts_[8 * kTokens + thread_] = scale.factor;
    const int row = rows.row + thread_;
    if (row < rows.end) p.out_scale[int64_t{row} * (p.N / 128) + column] = scale.value;
  }

  uint8_t* const codes_;
  float* const mosts_;
  const int thread_;
};

// Who does what: warp 0 finds the tiles, tells the others and loads; warps 1 and 2 multiply scales;
// warp 3 zeroes rows of no segment; warpgroups 1 and 2 multiply and store.
template <BlockEnd kEnd>
__global__ __launch_bounds__(384, 1) void MultiplyBlockSegments(
    const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap weight_map,
    const __grid_constant__ CUtensorMap out_map, const __grid_constant__ TileProblem p,
    const bool by_tma) {
  using Shape = BlockSegmentShape;
  constexpr bool kGated = kEnd == BlockEnd::kCodes;
  constexpr int kColumns = kGated ? 128 : 256;
  uint8_t* const shared = SharedTiles();
  const uint32_t ring = SharedAddress(shared);
  auto& barriers = *reinterpret_cast<SegmentBarriers*>(shared + Shape::kBarriers);
  const uint32_t full = SharedAddress(barriers.full), empty = SharedAddress(barriers.empty);
  FoundTiles tiles(barriers.found, barriers.taken, reinterpret_cast<int4*>(&barriers + 1));
  auto* const scales = reinterpret_cast<float*>(shared + Shape::kScales);
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, warpgroup = warp / 4;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shape::kStages; ++i) {
      InitBarrier(full + 8 * i, 1 + 32 * Shape::kScalers);
      InitBarrier(empty + 8 * i, 8);
    }
    tiles.Init(8 + Shape::kScalers);
    FenceBarriers();
    PrefetchMap(&x_map), PrefetchMap(&weight_map), PrefetchMap(&out_map);
  }
  __syncthreads();
  WaitForWork();
  const int columns = (p.N + kColumns - 1) / kColumns;
  const int steps = (p.K + Shape::kDepth - 1) / Shape::kDepth;
  RingPlace<Shape::kStages> at;
  TilePlace place;
  if (warpgroup == 0) {
    GiveRegisters<56>();
    if (warp == 0) {
      TileWalk walk(p, Shape::kTokens, columns, 1024, 8);
      for (int tile = blockIdx.x;; tile += gridDim.x) {
        const bool is_there = walk.Find(tile, &place);
        tiles.Tell(is_there, place);
        if (!is_there) break;
        if (lane == 0) {
          const int boxes = (place.end - place.row + 31) / 32;
          const int row = (kGated ? 2 : 1) * place.expert * p.N + place.column * kColumns;
          const int other = kGated ? p.N : 128;
          for (int k = 0; k < steps; ++k, at.Next()) {
            const uint32_t stage = ring + at.stage * Shape::kStageBytes;
            const uint32_t barrier = full + 8 * at.stage;
            WaitAt(empty + 8 * at.stage, at.parity ^ 1);
            ArriveForBytes(barrier, Shape::kWeightBytes + boxes * 32 * 128);
            for (int h = 0; h < 2; ++h)
              LoadBox(stage + h * Shape::kHalfBytes, &weight_map, barrier, k * Shape::kDepth,
                      row + other * h);
            for (int i = 0; i < boxes; ++i)
              LoadBox(stage + Shape::kWeightBytes + i * 32 * 128, &x_map, barrier,
                      k * Shape::kDepth, place.row + 32 * i);
          }
        }
        __syncwarp();
      }
      LetNextStart();
    } else if (warp <= Shape::kScalers) {
      const int h = warp - 1;
      while (tiles.Take(&place)) {
        const int row =
            kGated ? place.column * 128 + p.N * h : Lesser(place.column * 256 + 128 * h, p.N - 1);
        ScaleStages(
            p, BlockRows(place, 0, 1), p.x_scale + place.expert * p.x_scale_expert,
            p.weight_scale + place.expert * p.weight_scale_expert + row / 128 * p.weight_scale_row,
            scales + h * Shape::kTokens, full, empty, &at);
      }
    } else if (!kGated) {
      TileWalk(p, 1, 1, 1).ZeroRest(lane, 32);
    }
  } else {
    TakeRegisters<224>();
    const int w = warpgroup - 1;
    PieceWriter<Operand::kE4M3, Shape::kBuffers> writer(
        ring + Shape::kResults + w * Shape::kBuffers * Shape::kPieceBytes, w, p.result);
    float sums[2][Shape::kTokens / 2];
    while (tiles.Take(&place)) {
      const BlockRows rows(place, 0, 1);
      WithColumns<Shape::kTokens>(rows.count, [&](auto count) {
        constexpr int kCount = count.value;
#pragma unroll
        for (int i = 0; i < kCount / 2; ++i) sums[0][i] = sums[1][i] = 0;
        for (int k = 0; k < steps; ++k, at.Next()) {
          WaitAt(full + 8 * at.stage, at.parity);
          const uint32_t stage = ring + at.stage * Shape::kStageBytes;
          const uint64_t a = TileOf(stage + w * 64 * 128), b = TileOf(stage + Shape::kWeightBytes);
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            float part[kCount / 2];
            FenceProducts();
#pragma unroll
            for (int i = 0; i < 4; ++i)
              Product<kCount>::template Add<Operand::kE4M3>(
                  part, a + (Shape::kHalfBytes >> 4) * h + 2 * i, b + 2 * i, i);
            CommitProducts();
            WaitForProducts<0>();
            Pin(part);
            const float* scale = scales + (at.stage * 2 + h) * Shape::kTokens + lane % 4 * 2;
#pragma unroll
            for (int j = 0; j < kCount / 8; ++j) {
              const float2 by = *reinterpret_cast<const float2*>(scale + 8 * j);
#pragma unroll
              for (int i = 4 * j; i < 4 * j + 4; ++i)
                sums[h][i] = MulAdd(part[i], i % 2 ? by.y : by.x, sums[h][i]);
            }
          }
          __syncwarp();
          if (lane == 0) Arrive(empty + 8 * at.stage);
        }
      });
      if constexpr (kGated) {
        WithActivation(p.activation, [&](auto activate) {
#pragma unroll
          for (int j = 0; j < Shape::kTokens / 8; ++j) {
            if (8 * j >= rows.count) break;
#pragma unroll
            for (int i = 4 * j; i < 4 * j + 4; ++i) sums[0][i] = activate(sums[0][i]) * sums[1][i];
          }
        });
        CodeWriter(shared + Shape::kResults, reinterpret_cast<float*>(shared + Shape::kMosts))
            .Write(sums[0], p, rows, place.column);
        continue;
      }
      ResultPlace to = {&out_map, p.out, p.N, 0, 0, 0, 0, by_tma};
      const auto write = [&](auto in_floats) {
#pragma unroll
        for (int i = 0; i < 2 * (Shape::kTokens / 32); ++i) {
          float v[16];
#pragma unroll
          for (int j = 0; j < 16; ++j) v[j] = sums[i % 2][16 * (i / 2) + j];
          to.column = place.column * kColumns + i % 2 * 128 + w * 64;
          to.columns_left = p.N - to.column;
          to.row = rows.row + 32 * (i / 2), to.rows_left = rows.end - to.row;
          if constexpr (in_floats.value)
            writer.WriteFloats(v, to);
          else
            writer.Write(v, to);
        }
      };
      if (kEnd == BlockEnd::kFloats && p.result == kAnyopFloat32)
        write(std::bool_constant<kEnd == BlockEnd::kFloats>());
      else
        write(std::false_type());
    }
    writer.End();
  }
}

// ---- host ----

// kCodes: N is a multiple of 128, and rows of no segment stay as they are.
template <BlockEnd kEnd>
int32_t RunBlockSegments(AnyopCall* call, const TileProblem& p) {
  using Shape = BlockSegmentShape;
  constexpr Operand kType = Operand::kE4M3;
  constexpr int kGates = kEnd == BlockEnd::kCodes ? 2 : 1;
  if (p.rows == 0 || p.N == 0) return kAnyopOk;
  if (!TakesTma(p, kType)) return DeclineTma(call);
  const bool by_tma =
      kGates == 1 && p.result != kAnyopFloat32 && p.N % 8 == 0 && IsAligned(p.out, 16);
  const Operand narrow = p.result == kAnyopFloat16 ? Operand::kFloat16 : Operand::kBFloat16;
  CUtensorMap x, weight, out;
  if (!EncodeRows(&x, kType, p.x, p.rows, p.K, 32) ||
      !EncodeRows(&weight, kType, p.weight, int64_t{p.experts} * kGates * p.N, p.K, 128))
    return DeclineTma(call);
  out = x;
  if (by_tma && !EncodeRows(&out, narrow, p.out, p.rows, p.N, 32)) return DeclineTma(call);
  constexpr auto kernel = MultiplyBlockSegments<kEnd>;
  if (int32_t status = AllowShared<kernel>(call, Shape::kSharedBytes)) return status;
  Limits limits;
  if (int32_t status = ReadLimits(call, &limits)) return status;
  const int64_t tiles =
      (CeilDiv(p.rows, int64_t{Shape::kTokens}) + p.experts) * CeilDiv(p.N, int64_t{256 / kGates});
  const int64_t blocks = std::min<int64_t>(tiles, limits.multiprocessors);
  const Launch launch{dim3(static_cast<unsigned>(blocks)), dim3(384), Shape::kSharedBytes, true};
  return launch.Run(call, kernel, x, weight, out, p, by_tma);
}

}  // namespace
}  // namespace anyop::cuda
