// SPDX-License-Identifier: Apache-2.0
// Attention of few rows to pages on every GPU from Ampere on: decoding, where a group has at most
// eight rows of a sequence's one query.
//
// A block has a sequence's rows of a group and a part of its keys. Each of its warps takes every
// eighth 16 keys, whose loads go straight to registers (attention_paged_few_rows.h), so that none
// waits for another; the sums of all meet in shared memory at the end.
#pragma once

#include "attention_paged_few_rows.h"
#include "attention_paged_parts.h"

namespace anyop::cuda {
namespace {

constexpr int kFewWarps = 8, kFewThreads = 32 * kFewWarps;
template <typename C>
constexpr int kFewBlocks = sizeof(C) == 1 ? 2 : 1;  // of a multiprocessor

// Four features of a row: sums of weights and of weighted values, under the greatest score.
struct FewSums {
  float most, sum, values[4];
};

// What a block's warps have summed.
template <int kFeatures>
struct alignas(16) FewRoom {
  float outs[kFewWarps][kFewRows][kFeatures];  // four features by Four
  float tops[kFewRows][kFewWarps], sums[kFewRows][kFewWarps];

  // So that those that lanes write at once lie in all banks.
  template <bool kBytes>
  __device__ float4* Four(int warp, int row, int feature) {
    const int two = row >> 1, order = kBytes ? two : (two & 1) | (two & 2) << 1;
    return reinterpret_cast<float4*>(outs[warp][row]) + (feature / 4 ^ order);
  }
  // is_wrong: all are NaN.
  template <typename Warp>
  __device__ void Keep(const Warp& mine, int warp, int rows, bool is_wrong) {
    const int lane = threadIdx.x % 32;
    if (lane % 4 == 0)
      tops[lane / 4][warp] = mine.max, sums[lane / 4][warp] = is_wrong ? NAN : mine.sum;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int row = lane % 4 * 2 + c;
      if (row >= rows) continue;
#pragma unroll
      for (int f = 0; f < kFeatures / 8; f += 4)
        *Four<Warp::kBytes>(warp, row, Warp::FeatureOf(f)) = make_float4(
            mine.OutOf(c, f), mine.OutOf(c, f + 1), mine.OutOf(c, f + 2), mine.OutOf(c, f + 3));
    }
  }
  template <bool kBytes>
  __device__ FewSums Join(int row, int feature) {
    FewSums of = {-INFINITY, 0, {}};
    float top[kFewWarps], total[kFewWarps];
#pragma unroll
    for (int w = 0; w < kFewWarps; w += 4) {
      *reinterpret_cast<float4*>(top + w) = *reinterpret_cast<const float4*>(tops[row] + w);
      *reinterpret_cast<float4*>(total + w) = *reinterpret_cast<const float4*>(sums[row] + w);
    }
#pragma unroll
    for (int w = 0; w < kFewWarps; ++w) of.most = fmaxf(of.most, top[w]);
    const float base = of.most == -INFINITY ? 0 : of.most;
#pragma unroll
    for (int w = 0; w < kFewWarps; ++w) {
      const float share = PowerOfTwo(top[w] - base);
      const float4 four = *Four<kBytes>(w, row, feature);
      of.sum += total[w] * share;
      of.values[0] += four.x * share, of.values[1] += four.y * share;
      of.values[2] += four.z * share, of.values[3] += four.w * share;
    }
    return of;
  }
};

// To the result, or to a part's.
template <typename T, int kFeatures>
__device__ void WriteFew(const FewView& p, const FewSums& of, float factor, int b, int h,
                         int feature) {
  const PagedEnd end = EndSum(p.parts ? nullptr : p.sinks, h, of.most, of.sum);
  const float share = end.share * factor;
  if (p.parts) {
    const int64_t at = (int64_t{blockIdx.z} * gridDim.y + b) * gridDim.x * p.group + h;
    *reinterpret_cast<float4*>(p.parts + at * kFeatures + feature) = make_float4(
        of.values[0] * share, of.values[1] * share, of.values[2] * share, of.values[3] * share);
    if (feature == 0) p.parts_lse[at] = end.lse;
    return;
  }
  T* to = static_cast<T*>(p.out) + int64_t{b} * p.out_token + int64_t{h} * p.out_head + feature;
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = Narrow<T>(of.values[i] * share);
  if (p.lse && feature == 0)
    p.lse[int64_t{b} * p.lse_token + int64_t{h} * p.lse_head] = end.lse * 0.69314718055994530942f;
}

// blockIdx: group, sequence, part.
template <typename T, typename C, int kFeatures>
__global__ __launch_bounds__(kFewThreads,
                             kFewBlocks<C>) void AttendFew(const __grid_constant__ FewView p) {
  using Warp = FewWarp<T, C, kFeatures>;
  __shared__ FewRoom<kFeatures> room;
  const int g = blockIdx.x, b = blockIdx.y;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  const int begin = blockIdx.z * p.part;
  WaitForWork();
  LetNextStart();
  int t = begin + warp * kFewKeys, end = __shfl_sync(~0u, p.lengths[b], 0);
  if (begin > 0 && begin >= end) return;
  bool is_wrong = end < 0 || end > p.places;
  const int first = std::max(begin, end - 1 - p.left);
  end = is_wrong ? 0 : std::min(end, begin + p.part);
  constexpr int kStep = kFewWarps * kFewKeys;
  if (t + kFewKeys <= first) t += (first - t) & -kStep;
  int entry = p.EntryOf(b, t);
  Warp mine;
  mine.LoadQueries(p, b, g);
  if (p.k_scale) mine.steep *= p.k_scale[g * p.k_scale_step];
  const float factor = (p.v_scale ? p.v_scale[g * p.v_scale_step] : 1) / Warp::kWeight;
  bool is_first = true;
#pragma unroll 1
  for (; t < end; t += kStep) {
    const bool is_there = entry >= 0 && entry < p.N;
    is_wrong |= !is_there && t + kFewKeys > first;
    typename Warp::Loaded loaded;
    Warp::Load(p, p.At(is_there ? entry : 0, t, g), &loaded);
    entry = p.EntryOf(b, t + kStep);
    mine.Add(p, loaded, t, first, end, is_first);
    is_first = false;
  }
  mine.EndSum();
  room.Keep(mine, warp, p.group, is_wrong);
  __syncthreads();
#pragma unroll 1
  for (int i = threadIdx.x; i < p.group * (kFeatures / 4); i += kFewThreads) {
    const int row = i / (kFeatures / 4), feature = i % (kFeatures / 4) * 4;
    WriteFew<T, kFeatures>(p, room.template Join<Warp::kBytes>(row, feature), factor, b,
                           g * p.group + row, feature);
  }
}

// ---- host ----

// As FewView has it; false: it cannot. bytes: of an element of a cache.
inline bool MakeFew(const PagedView& p, int bytes, FewView* view) {
  const int64_t page = p.k_steps.batch * bytes / 16, place = p.k_steps.row * bytes / 16,
                head = p.k_steps.head * bytes / 16;
  const bool is_alike = p.k_steps.batch == p.v_steps.batch && p.k_steps.row == p.v_steps.row &&
                        p.k_steps.head == p.v_steps.head;
  const auto [least, most] = std::minmax<int64_t>(
      {page * p.N, place, head, p.q_steps.batch, p.q_steps.head, p.out_steps.batch,
       p.out_steps.head, p.lse_steps.batch, p.lse_steps.head, p.k_scale_step, p.v_scale_step});
  const bool is_taken = !p.cu_q && p.each == 1 && p.group <= kFewRows && p.D == p.E &&
                        (p.D == 128 || (p.D == 64 && bytes == 2)) && p.q_aligned && p.k_aligned &&
                        p.v_aligned && !p.slopes && is_alike && p.N > 0 && p.P >= kFewKeys &&
                        !(p.P & (p.P - 1)) && least >= 0 && most < INT32_MAX && p.B <= 65535;
  if (!is_taken) return false;
  const auto of_16_bytes = [](int64_t steps) { return static_cast<uint32_t>(steps / 8); };
  const auto narrow = [](int64_t steps) { return static_cast<int>(steps); };
  *view = {};
  view->table = p.table, view->lengths = p.lengths;
  view->q = static_cast<const uint4*>(p.q), view->k = static_cast<const uint4*>(p.k);
  view->v = static_cast<const uint4*>(p.v);
  view->q_token = of_16_bytes(p.q_steps.batch), view->q_head = of_16_bytes(p.q_steps.head);
  view->page = static_cast<uint32_t>(page), view->place = static_cast<uint32_t>(place);
  view->head = static_cast<uint32_t>(head);
  view->M = p.M, view->N = p.N, view->places = narrow(p.places), view->group = p.group;
  while (1 << view->page_shift < p.P) ++view->page_shift;
  view->left = p.left, view->part = 1 << 30;
  const float log2e = 1.44269504088896340736f;
  view->cap = p.softcap * log2e;
  view->steep = p.scale * log2e * (p.softcap > 0 ? 2 / p.softcap : 1);
  view->out_token = narrow(p.out_steps.batch), view->out_head = narrow(p.out_steps.head);
  view->lse_token = narrow(p.lse_steps.batch), view->lse_head = narrow(p.lse_steps.head);
  view->k_scale_step = narrow(p.k_scale_step), view->v_scale_step = narrow(p.v_scale_step);
  view->out = p.out, view->lse = p.lse;
  view->sinks = p.sinks, view->k_scale = p.k_scale, view->v_scale = p.v_scale;
  return true;
}

template <typename T, typename C, int kFeatures>
int32_t RunFew(PagedView p, FewView view, int64_t multiprocessors, AnyopCall* call) {
  const int64_t slots = multiprocessors * kFewBlocks<C>;
  if (const int32_t status = Divide(call, 0, slots, &p)) return status;
  view.part = p.part, view.parts = p.count > 1 ? p.parts : nullptr, view.parts_lse = p.parts_lse;
  const Launch launch = {
      dim3(static_cast<unsigned>(p.G), static_cast<unsigned>(p.B), static_cast<unsigned>(p.count)),
      dim3(kFewThreads), 0, true};
  if (const int32_t status = launch.Run(call, AttendFew<T, C, kFeatures>, view)) return status;
  return RunJoin<T>(p, call);
}
// Of views that MakeFew has made.
template <typename T, typename C>
int32_t RunFew(const PagedView& p, const FewView& view, int64_t multiprocessors, AnyopCall* call) {
  if constexpr (sizeof(C) == 2)
    if (p.D == 64) return RunFew<T, C, 64>(p, view, multiprocessors, call);
  return RunFew<T, C, 128>(p, view, multiprocessors, call);
}

}  // namespace
}  // namespace anyop::cuda
