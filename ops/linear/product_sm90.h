// SPDX-License-Identifier: Apache-2.0
// Which of Hopper's kernels computes a product: those of many rows or that of few.
#pragma once

#include "segment_blocks_sm90.h"
#include "thin_sm90.h"

namespace anyop::cuda {
namespace {

// In clusters' tiles.
template <Operand kType, TileForm kForm>
int64_t TileCount(const TileProblem& p) {
  using Shape = TileShape<kType, kForm>;
  return SegmentCount(p) * CeilDiv(SegmentRows(p), int64_t{Shape::kClusterRows}) *
         CeilDiv(p.N, Shape::kClusterColumns);
}

template <Operand kType, TileForm kForm>
double TilesTime(const TileProblem& p, int64_t clusters) {
  using Shape = TileShape<kType, kForm>;
  constexpr StageTimes kTimes = kTimesOf<kType, kForm>;
  constexpr double kFetched = Shape::kXBox * 128 + Shape::kWeightRows * 128;  // by each block
  const int64_t tiles = TileCount<kType, kForm>(p);
  const auto blocks = static_cast<double>(2 * std::min(tiles, clusters));
  const double stage = std::max(kTimes.tile, kFetched * blocks / kTimes.tile_bytes);
  return kTimes.tile_start + static_cast<double>(CeilDiv(tiles, clusters)) *
                                 (CeilDiv(p.K, Shape::kDepth) * stage + kTimes.tile_round);
}

constexpr int64_t kShortSegment = 96;  // rows

// Whether segments of 16 bits have tiles of their own height (segment_sm90.h). Shorter ones are
// bound by the bytes of weight, of longer ones tiles of 128 rows are hardly empty; between them, on
// an H100, 256 rows take 20 and 2 % less. gathers: a launch less besides.
template <Operand kType, TileForm kForm>
bool HasOwnHeight(const TileProblem& p, bool gathers = false) {
  constexpr bool kMay =
      BytesOf(kType) == 2 && (kForm == TileForm::kSegments || kForm == TileForm::kGatedSegments);
  const int64_t rows = SegmentRows(p);
  return kMay && rows > kShortSegment && rows <= (gathers ? 640 : 384);
}

// Segments of nearly all at most 16 rows, and at most 32 where tiles are few: by the times some of
// them took tiles, 1.0 to 1.8 times as long (518 products on an H200; docs/experts.md).
template <Operand kType, TileForm kForm, int kTokens>
bool IsShort(const TileProblem& p, int multiprocessors) {
  if (BytesOf(kType) != 2 || !(p.offsets || p.counts)) return false;
  return kTokens == 16 ||
         (kTokens == 32 && p.offsets && TileCount<kType, kForm>(p) < multiprocessors);
}

// Choices: 0 tiles; 1 to 4 thin, with 1, 2, 4, 8 blocks a cluster. -1: what takes the least time.
template <Operand kType, TileForm kForm, TileForm kThinForm, int kTokens>
int32_t ChooseThin(AnyopCall* call, const TileProblem& p, bool* is_thin) {
  const int choice = AnyopChoice(call);
  *is_thin = choice > 0;
  if (choice >= 0) return kAnyopOk;
  Limits limits;
  if (const int32_t status = ReadLimits(call, &limits)) return status;
  *is_thin = IsShort<kType, kForm, kTokens>(p, limits.multiprocessors);
  if (*is_thin) return kAnyopOk;
  double least = ThinTime<kType, kThinForm, kTokens>(p, 0, limits.multiprocessors);
  for (int i = 1; i < 4 && 1 << i <= CeilDiv(p.K, ThinShape<kType, kThinForm, kTokens>::kDepth);
       ++i)
    least = std::min(least, ThinTime<kType, kThinForm, kTokens>(p, i, limits.multiprocessors >> i));
  *is_thin = least < TilesTime<kType, kForm>(p, limits.multiprocessors / 2);
  return kAnyopOk;
}

// Whether segments with scales of blocks have tiles of their own height, of so many columns
// (segment_blocks_sm90.h). Of 290 products on an H200 they took 0.3 to 1.1 times as long as the
// others there (docs/experts.md).
inline bool HasOwnBlocks(AnyopCall* call, const TileProblem& p, int columns) {
  Limits limits;
  if (ReadLimits(call, &limits) != kAnyopOk) return false;
  const int64_t rows = CeilDiv(p.rows, p.experts), segments = std::min(p.experts, p.rows);
  const int64_t tiles = segments * CeilDiv(rows, 128) * CeilDiv(p.N, columns);
  return rows <= 256 && tiles >= limits.multiprocessors * (rows < 8 ? 3 : 1);
}

template <Operand kType, TileForm kForm, TileForm kThinForm, bool kFloats, int kTokens>
int32_t RunTilesOrThin(AnyopCall* call, const TileProblem& p) {
  if constexpr (kForm == TileForm::kBlocks) {
    constexpr BlockEnd kEnd = kFloats ? BlockEnd::kFloats : BlockEnd::k16Bits;
    if ((p.offsets || p.counts) && AnyopChoice(call) < 0 && HasOwnBlocks(call, p, 256))
      return RunBlockSegments<kEnd>(call, p);
  }
  bool is_thin;
  if (int32_t status = ChooseThin<kType, kForm, kThinForm, kTokens>(call, p, &is_thin))
    return status;
  if (is_thin) return RunThin<kType, kThinForm, kTokens>(call, p);
  if constexpr (BytesOf(kType) == 2 && kForm == TileForm::kSegments)
    if (HasOwnHeight<kType, kForm>(p))
      return RunSegments<kType, SegmentForm::kRows, false, kFloats>(call, p);
  if constexpr (BytesOf(kType) == 2 && kForm == TileForm::kGatedSegments) {
    if (p.order) return RunSegments<kType, SegmentForm::kGated, true>(call, p);
    if (HasOwnHeight<kType, kForm>(p)) return RunSegments<kType, SegmentForm::kGated>(call, p);
  }
  return RunTiles<kType, kForm, kFloats>(call, p);
}

// Whether a gated product of segments takes the rows that p.order says.
template <Operand kType>
bool GathersOnHopper(AnyopCall* call, const TileProblem& p) {
  constexpr auto kForm = TileForm::kGatedSegments;
  bool is_thin = true;
  return IsAligned(p.x, 16) && HasOwnHeight<kType, kForm>(p, true) &&
         ChooseThin<kType, kForm, TileForm::kGated, 64>(call, p, &is_thin) == kAnyopOk && !is_thin;
}

// kFloats: results may be float32.
template <Operand kType, TileForm kForm, TileForm kThinForm = kForm,
          bool kFloats = kType == Operand::kInt8>
int32_t RunOnHopper(AnyopCall* call, const TileProblem& p) {
  if (p.rows == 0 || p.N == 0) return kAnyopOk;
  const int64_t rows = LikelyRows<kType>(p);
  if (rows <= 16) return RunTilesOrThin<kType, kForm, kThinForm, kFloats, 16>(call, p);
  if (rows <= 32) return RunTilesOrThin<kType, kForm, kThinForm, kFloats, 32>(call, p);
  return RunTilesOrThin<kType, kForm, kThinForm, kFloats, 64>(call, p);
}

}  // namespace
}  // namespace anyop::cuda
