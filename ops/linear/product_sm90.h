// SPDX-License-Identifier: Apache-2.0
// Which of Hopper's two kernels computes a product: that of many rows or that of few.
#pragma once

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

// Choices: 0 tiles; 1 to 4 thin, with 1, 2, 4, 8 blocks a cluster. -1: what takes the least time.
template <Operand kType, TileForm kForm, TileForm kThinForm, bool kFloats, int kTokens>
int32_t RunTilesOrThin(AnyopCall* call, const TileProblem& p) {
  const int choice = AnyopChoice(call);
  bool is_thin = choice > 0;
  if (choice < 0) {
    Limits limits;
    if (const int32_t status = ReadLimits(call, &limits)) return status;
    double least = ThinTime<kType, kThinForm, kTokens>(p, 0, limits.multiprocessors);
    for (int i = 1; i < 4 && 1 << i <= CeilDiv(p.K, ThinShape<kType, kThinForm, kTokens>::kDepth);
         ++i)
      least =
          std::min(least, ThinTime<kType, kThinForm, kTokens>(p, i, limits.multiprocessors >> i));
    is_thin = least < TilesTime<kType, kForm>(p, limits.multiprocessors / 2);
  }
  return is_thin ? RunThin<kType, kThinForm, kTokens>(call, p)
                 : RunTiles<kType, kForm, kFloats>(call, p);
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
