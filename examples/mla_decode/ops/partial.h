// SPDX-License-Identifier: Apache-2.0
// decode and sparse_decode on the CPU: a few heads of a part of a sequence at a time, in one pass.
//
// A task converts each token to float32 once, for kHeads heads. A head keeps its greatest score so
// far, the sum of exponentials relative to it and their sum of values; a greater score scales both
// down. Scores and values are summed in float32, exponentials in float64.
#pragma once

#include <cmath>

#include "anyop/cpu/rows.h"
#include "tokens.h"

namespace anyop::mla {

constexpr int64_t kHeads = 8;

template <typename Tokens>
struct Work {
  const AnyopTensor *q, *cache;
  float *partial, *lse;
  int64_t B, H, W, R, S, splits;
  float scale;
  Tokens tokens;

  int64_t head_blocks() const { return (H + kHeads - 1) / kHeads; }
  const char* RowOf(int64_t row) const {
    const int64_t at = row / S * cache->strides[0] + row % S * cache->strides[1];
    return static_cast<const char*>(cache->data) + at * (cache->dtype_bits / 8);
  }
};

// One head: what is known of the tokens so far.
struct Head {
  float q[kMaxW], sum[kMaxW];
  float most;
  double weights;

  void Start(AnyopDtype dtype, const char* from, float scale, int64_t W, int64_t R) {
    cpu::RowReader<float> reader(dtype, from, W);
    const float* features = reader.Read(0, W);
    for (int64_t w = 0; w < W; ++w) q[w] = features[w] * scale;
    for (int64_t r = 0; r < R; ++r) sum[r] = 0;
    most = -INFINITY;
    weights = 0;
  }

  void Add(const float* token, int64_t W, int64_t R) {
    const auto times = [](float a, float b) { return a * b; };
    const float score = cpu::SumBlock(W, times, static_cast<const float*>(q), token);
    if (score > most) {
      const float less = std::exp(most - score);
      for (int64_t r = 0; r < R; ++r) sum[r] *= less;
      weights *= less;
      most = score;
    }
    const float weight = std::exp(score - (most == -INFINITY ? 0 : most));
    weights += weight;
#pragma omp simd
    for (int64_t r = 0; r < R; ++r) sum[r] += weight * token[r];
  }

  void Finish(float* partial, float* lse, int64_t R) const {
    const bool is_empty = weights == 0;
    for (int64_t r = 0; r < R; ++r)
      partial[r] = is_empty ? 0 : static_cast<float>(sum[r] / weights);
    *lse = is_empty ? -INFINITY : static_cast<float>(most + std::log(weights));
  }
};

template <typename Tokens>
inline void Attend(const Work<Tokens>& work, int64_t task) {
  const int64_t h = task % work.head_blocks() * kHeads, part_of_b = task / work.head_blocks();
  const int64_t k = part_of_b % work.splits, b = part_of_b / work.splits;
  const int64_t heads = work.H - h < kHeads ? work.H - h : kHeads;
  const AnyopDtype dtype = AnyopDtypeOf(work.q);
  const cpu::Rows q(work.q);
  Head head[kHeads];
  for (int64_t i = 0; i < heads; ++i)
    head[i].Start(dtype, q[b * work.H + h + i], work.scale, work.W, work.R);
  const Part part = PartOf(work.tokens.CountOf(b), work.splits, k);
  for (int64_t t = part.begin; t < part.end; ++t) {
    const int64_t row = work.tokens.RowOf(b, t);
    if (row == kAbsent) continue;
    cpu::RowReader<float> reader(dtype, work.RowOf(row), work.W);
    const float* token = reader.Read(0, work.W);
    for (int64_t i = 0; i < heads; ++i) head[i].Add(token, work.W, work.R);
  }
  for (int64_t i = 0; i < heads; ++i) {
    const int64_t at = part_of_b * work.H + h + i;
    head[i].Finish(work.partial + at * work.R, work.lse + at, work.R);
  }
}

// run(work, begin, end) attends for these tasks; it is compiled where it is given, for each
// processor.
template <typename Args, typename Tokens, typename Run>
int32_t RunParts(const Args& args, AnyopCall* call, const Tokens& tokens, Run run) {
  const Work<Tokens> work = {args.q,
                             args.cache,
                             static_cast<float*>(args.partial->data),
                             static_cast<float*>(args.lse->data),
                             args.B,
                             args.H,
                             args.W,
                             args.R,
                             args.S,
                             args.splits,
                             ScaleOf(args),
                             tokens};
  ParallelFor(call, args.B * args.splits * work.head_blocks(), 1,
              [&](int64_t begin, int64_t end) { run(&work, begin, end); });
  return kAnyopOk;
}

}  // namespace anyop::mla
