// SPDX-License-Identifier: Apache-2.0
// Which of Hopper's two kernels computes a product: that of many rows or that of few.
#pragma once

#include "thin_sm90.h"

namespace anyop::cuda {
namespace {

// Choices: 0 tiles; 1 to 4 thin, with 1, 2, 4, 8 blocks a cluster. -1: the faster by this model of
// an H200: microseconds for 32 KiB of weight of a thin tile on one of 132 multiprocessors, and for
// 128 bytes of k of the tiles of a cluster of two, 256 x 256 results.
inline bool IsThin(AnyopCall* call, const TileProblem& p, int bytes, TileForm form) {
  const int choice = AnyopChoice(call);
  if (choice >= 0) return choice > 0;
  const bool segments = p.offsets || p.counts, scaled = form == TileForm::kBlocks;
  const int64_t segment = segments ? CeilDiv(p.rows, p.experts) : p.rows;
  const int64_t count = segments ? p.experts : 1, k_bytes = int64_t{p.K} * bytes;
  const int64_t columns = form == TileForm::kGated ? 2 * int64_t{p.N} : p.N;
  const double thin_us = segment <= 32 ? (scaled ? 1.5 : 1.1)
                         : scaled      ? 3
                         : bytes == 1  ? 1.6
                                       : 1.35;
  const double thin = thin_us / 132 * static_cast<double>(count * CeilDiv(segment, 64)) *
                      static_cast<double>(CeilDiv(columns, 128) * CeilDiv(k_bytes, 256));
  const int64_t tiles = count * CeilDiv(segment, 256) * CeilDiv(columns, 256);
  const double tile_us = scaled ? 0.95 : 0.7;
  return thin < tile_us * static_cast<double>(CeilDiv(tiles, 66) * CeilDiv(k_bytes, 128));
}

template <Operand kType, TileForm kForm, TileForm kThinForm = kForm>
int32_t RunOnHopper(AnyopCall* call, const TileProblem& p) {
  if (!IsThin(call, p, BytesOf(kType), kForm)) return RunTiles<kType, kForm>(call, p);
  const bool segments = p.offsets || p.counts;
  const int64_t segment = segments ? CeilDiv(p.rows, p.experts) : p.rows;
  if (segment <= 16) return RunThin<kType, kThinForm, 16>(call, p);
  if (segment <= 32) return RunThin<kType, kThinForm, 32>(call, p);
  return RunThin<kType, kThinForm, 64>(call, p);
}

}  // namespace
}  // namespace anyop::cuda
