// SPDX-License-Identifier: Apache-2.0
// build_permute_map and check_permutations on the CPU: a thread takes 64 permutations of a group at
// a time. Tiles of rows are turned, so that a vector holds a column's rows.
#include "anyop/ops/build_permute_map.h"

#include "anyop/cpu.h"
#include "anyop/ops/check_permutations.h"
#include "two_of_four.h"

namespace anyop::cpu {
namespace {

constexpr int64_t kPermutations = 64, kTileRows = 64, kTileColumns = 16;

struct Work {
  Matrix matrix;
  Indices stripes, permutations;
  int64_t W, P, chunks;
  float* sums;    // of each permutation, or NULL
  double* bases;  // of each group
  BestPermutation* best;
};

// Adds what n rows keep under a permutation to its sums. Row r of column c is at(c)[r * step].
template <typename At, typename Step>
inline void AddRows(const Work& work, int64_t p, int64_t n, const At& at, Step step,
                    double (&sums)[kSumLanes]) {
  double rows[kTileRows] = {};
  for (int64_t w = 0; w < work.W; ++w) {
    const int64_t first = (p * work.W + w) * 4;
    const float* columns[4];
    for (int k = 0; k < 4; ++k) columns[k] = at(work.permutations[first + k]);
    const float *a = columns[0], *b = columns[1], *c = columns[2], *d = columns[3];
    for (int64_t r = 0; r < n; ++r)
      rows[r] += Kept(a[r * step], b[r * step], c[r * step], d[r * step]);
  }
  for (int64_t r = 0; r < kTileRows; r += kSumLanes)
    for (int k = 0; k < kSumLanes; ++k) sums[k] += rows[r + k];
}

inline void Score(const Work& work, int64_t group, int64_t first, int64_t count,
                  double (*sums)[kSumLanes]) {
  const auto column_of = [&](int64_t c) {
    return work.stripes[group * work.W + c / 4] * 4 + c % 4;
  };
  const bool turned = work.W * 4 <= kTileColumns;
  float tile[kTileColumns][kTileRows];
  for (int64_t top = 0; top < work.matrix.R; top += kTileRows) {
    const int64_t left = work.matrix.R - top, n = left < kTileRows ? left : kTileRows;
    for (int64_t c = 0; turned && c < work.W * 4; ++c) {
      const float* from = work.matrix.At(top, column_of(c));
      for (int64_t r = 0; r < n; ++r) tile[c][r] = from[r * work.matrix.step];
    }
    const auto in_tile = [&](int64_t c) -> const float* { return tile[c]; };
    const auto in_matrix = [&](int64_t c) { return work.matrix.At(top, column_of(c)); };
    for (int64_t i = 0; i < count; ++i) {
      if (turned) {
        AddRows(work, first + i, n, in_tile, 1, sums[i]);
      } else {
        AddRows(work, first + i, n, in_matrix, work.matrix.step, sums[i]);
      }
    }
  }
}

ANYOP_CPU_CLONES void Run(const Work* work, int64_t begin, int64_t end) {
  for (int64_t part = begin; part < end; ++part) {
    const int64_t group = part / work->chunks, first = part % work->chunks * kPermutations;
    const int64_t left = work->P - first, count = left < kPermutations ? left : kPermutations;
    double sums[kPermutations][kSumLanes] = {};
    Score(*work, group, first, count, sums);
    BestPermutation best = {-HUGE_VAL, 0};
    for (int64_t i = 0; i < count; ++i) {
      const double sum = AddLanes(sums[i]);
      best.Take(sum, first + i);
      if (work->sums) work->sums[first + i] = static_cast<float>(sum);
    }
    if (first == 0) work->bases[group] = AddLanes(sums[0]);
    work->best[part] = best;
  }
}

// G groups of the stripes; group_columns: W, or 0 where the stripes are of no rows.
template <typename Args>
int32_t Search(const Args& args, int64_t G, int64_t group_columns, float* sums, AnyopCall* call) {
  const int64_t chunks = (args.P + kPermutations - 1) / kPermutations, parts = G * chunks;
  Work work = {Matrix(args.matrix),
               Indices(args.stripes),
               Indices(args.permutations),
               args.W,
               args.P,
               chunks,
               sums,
               nullptr,
               nullptr};
  if (const int32_t status =
          CheckIndices(call, "stripes", work.stripes, G * args.W, args.S, group_columns))
    return status;
  if (const int32_t status = CheckIndices(call, "permutations", work.permutations,
                                          args.P * args.W * 4, args.W * 4, args.W * 4))
    return status;
  const auto bytes = static_cast<int64_t>(parts * sizeof(BestPermutation) + G * sizeof(double));
  work.best = static_cast<BestPermutation*>(call->workspace(call, bytes));
  if (!work.best && bytes)
    return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  work.bases = reinterpret_cast<double*>(work.best + parts);
  const int64_t cost = kPermutations * args.R * args.W * 4 + 1;
  ParallelFor(call, parts, kGrain / cost + 1,
              [&](int64_t begin, int64_t end) { Run(&work, begin, end); });
  const Indices found(args.best);
  for (int64_t g = 0; g < G; ++g) {
    const double base = args.P > 0 ? work.bases[g] : 0;
    BestPermutation best = {base, 0};
    for (int64_t c = 0; c < chunks; ++c)
      best.Take(work.best[g * chunks + c].sum, work.best[g * chunks + c].p);
    static_cast<float*>(args.improvement->data)[g] = static_cast<float>(best.sum - base);
    found.Set(g, best.p);
  }
  return kAnyopOk;
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_build_permute_map_cpu(const BuildPermuteMapArgs* args, AnyopCall* call) {
  return anyop::cpu::Search(*args, args->G, args->W, nullptr, call);
}

extern "C" int32_t anyop_check_permutations_cpu(const CheckPermutationsArgs* args,
                                                AnyopCall* call) {
  return anyop::cpu::Search(*args, 1, 0, static_cast<float*>(args->sums->data), call);
}
