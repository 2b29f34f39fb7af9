// SPDX-License-Identifier: Apache-2.0
// Which of Hopper's kernels computes a product: those of many rows or that of few.
#pragma once

#include "segment_sm90.h"
#include "thin_sm90.h"

namespace anyop::cuda {
namespace {

template <Operand kType, TileForm kForm>
double TilesTime(const TileProblem& p, int64_t clusters) {
  using Shape = TileShape<kType, kForm>;
  constexpr StageTimes kTimes = kTimesOf<kType, kForm>;
  constexpr double kFetched = Shape::kXBox * 128 + Shape::kWeightRows * 128;  // by each block
  const int64_t tiles = SegmentCount(p) * CeilDiv(SegmentRows(p), int64_t{Shape::kClusterRows}) *
                        CeilDiv(p.N, Shape::kClusterColumns);
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

// Segments of at most 16 rows on average: thin took 0.54 to 1.01 times as long as tiles in 31 drawn
// cases of fused_moe on an H100 (bench/gpu/cuda_choices.py); by the times 12 of them took tiles.
template <Operand kType, int kTokens>
bool IsShort(const TileProblem& p) {
  return BytesOf(kType) == 2 && kTokens == 16 && (p.offsets || p.counts);
}

// Choices: 0 tiles; 1 to 4 thin, with 1, 2, 4, 8 blocks a cluster. -1: what takes the least time.
template <Operand kType, TileForm kForm, TileForm kThinForm, int kTokens>
int32_t ChooseThin(AnyopCall* call, const TileProblem& p, bool* is_thin) {
  const int choice = AnyopChoice(call);
  *is_thin = choice > 0 || (choice < 0 && IsShort<kType, kTokens>(p));
  if (choice >= 0 || *is_thin) return kAnyopOk;
  Limits limits;
  if (const int32_t status = ReadLimits(call, &limits)) return status;
  double least = ThinTime<kType, kThinForm, kTokens>(p, 0, limits.multiprocessors);
  for (int i = 1; i < 4 && 1 << i <= CeilDiv(p.K, ThinShape<kType, kThinForm, kTokens>::kDepth);
       ++i)
    least = std::min(least, ThinTime<kType, kThinForm, kTokens>(p, i, limits.multiprocessors >> i));
  *is_thin = least < TilesTime<kType, kForm>(p, limits.multiprocessors / 2);
  return kAnyopOk;
}

template <Operand kType, TileForm kForm, TileForm kThinForm, bool kFloats, int kTokens>
int32_t RunTilesOrThin(AnyopCall* call, const TileProblem& p) {
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
  if (SegmentRows(p) <= 16) return RunTilesOrThin<kType, kForm, kThinForm, kFloats, 16>(call, p);
  if (SegmentRows(p) <= 32) return RunTilesOrThin<kType, kForm, kThinForm, kFloats, 32>(call, p);
  return RunTilesOrThin<kType, kForm, kThinForm, kFloats, 64>(call, p);
}

}  // namespace
}  // namespace anyop::cuda
