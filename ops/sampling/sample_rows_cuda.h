// SPDX-License-Identifier: Apache-2.0
// Draws tokens from rows on CUDA: teams of filter_rows_cuda.h. A row is read once from memory, and
// once more for each step that its list does not hold.
#pragma once

#define ANYOP_BLOCKS_MEET 1
#include "read_rows_cuda.h"
#include "requests.h"

namespace anyop::cuda {
namespace {

using sampling::Request;
using sampling::Requests;

struct Draws {
  const void* x;
  int64_t row_step, B;
  Requests requests;
  int parts;
  TeamMemory* memory;
  Place* lists;
  int32_t* tokens;
  float* logprob;  // NULL where not wanted
};

__device__ inline Sum Entry(float weight, uint32_t word, uint32_t token) {
  return static_cast<Sum>(__float_as_uint(sampling::RaceOf(weight, word))) << 32 |
         static_cast<uint32_t>(~token);
}
__device__ inline uint32_t WordOf(const Request& request, uint32_t token) {
  const PhiloxWords words =
      sampling::WordsOfFour(request.seed, request.offset, uint64_t{token / 4});
  const uint32_t low = token & 1 ? words.at[1] : words.at[0];
  const uint32_t high = token & 1 ? words.at[3] : words.at[2];
  return token & 2 ? high : low;
}

// Of a thread's elements down to `last`, the best entry.
template <typename T>
__device__ Sum Race(const TeamRow<T>& row, const Request& request, const Scale& scale, Place last) {
  Sum best = 0;
  const auto run = [&](Place place) {
    if (place < last) return;
    const float x = ValueOf(place), weight = scale.Weight(x);
    if (!(weight > 0) || !(weight >= request.min_p || x == scale.most)) return;
    const Sum entry = Entry(weight, WordOf(request, TokenOf(place)), TokenOf(place));
    best = entry > best ? entry : best;
  };
  if (row.listed >= 0) {
    row.EachListed(row.listed, run);
  } else {
    row.Each(run);
  }
  return best;
}

// The logarithm to base 2, off by up to 2^-21 or that share of it; by no more than that of what is
// below 2^-126.
__device__ inline float Log2(float v) {
#if ANYOP_PTX
  float log;
  asm("lg2.approx.f32 %0, %1;" : "=f"(log) : "f"(v));
  return log;
#else
  return log2f(v);
#endif
}

// How a token does in the race of all, nearly: the logarithm of its weight over its exponential.
// That lies between u and u / (1 - u) for the uniform variable u of its word, so that most tokens
// need no exponential to be behind.
struct NearRace {
  float factor;  // of logits; of probabilities 0

  __device__ float Weight(float x) const { return factor == 0 ? Log2(x) : x * factor; }
  __device__ static float UniformOf(uint32_t word) {
    return MulAdd(static_cast<float>(word), 0x1p-32f, 0x1p-33f);
  }
  __device__ float AtMost(float x, uint32_t word) const {
    return Weight(x) - Log2(UniformOf(word));
  }
  __device__ float AtLeast(float x, uint32_t word) const {
    return AtMost(x, word) + Log2(UniformOf(~word));
  }
  __device__ float Score(float x, uint32_t word) const {
    return Weight(x) - Log2(sampling::ExponentialOf(word));
  }
  // What is below may be left out where this score is seen: far more than roundings are.
  __device__ static float Limit(float score) { return score - 0.01f - 1e-5f * fabsf(score); }
};

// The greatest of the row; lists who may win the race of all its tokens.
template <typename T>
__device__ Place FindRacers(TeamRow<T>* row, const Request& request, const NearRace& race,
                            bool is_probs) {
  constexpr int kRun = TeamRow<T>::kRun;
  const auto words_of = [&](int64_t v) {
    return sampling::WordsOfFour(request.seed, request.offset, static_cast<uint64_t>(v / 4));
  };
  float best = -INFINITY;
  const int64_t all = row->runs();
  row->EachRun(all < kTeamThreads ? all : kTeamThreads, -INFINITY,
               [&](int64_t v, const float (&x)[kRun]) {
#pragma unroll
                 for (int four = 0; four < kRun; four += 4) {
                   const PhiloxWords words = words_of(v + four);
#pragma unroll
                   for (int j = 0; j < 4; ++j) {
                     const float score = race.AtLeast(x[four + j], words.at[j]);
                     best = score > best ? score : best;
                   }
                 }
               });
  best = FloatOfKey(static_cast<uint32_t>(row->OfBlock(KeyOf(best), Greater())));
  volatile unsigned* const limit_key = &row->shared->limit;
  if (threadIdx.x == 0) {
    row->shared->limit = KeyOf(NearRace::Limit(best));
    row->shared->listed = best < INFINITY ? 0 : kListed + 1;
  }
  __syncthreads();
  return row->Gather(ReadRow(*row, is_probs, [&](int64_t v, const float (&x)[kRun]) {
    const float limit = FloatOfKey(*limit_key);
#pragma unroll
    for (int four = 0; four < kRun; four += 4) {
      const PhiloxWords words = words_of(v + four);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (!(race.AtMost(x[four + j], words.at[j]) >= limit)) continue;
        const float score = race.Score(x[four + j], words.at[j]);
        if (!(score >= limit && score > -INFINITY)) continue;
        row->Push(x[four + j], v + four + j);
        if (!(score < INFINITY)) {
          row->shared->listed = kListed + 1;
        } else if (NearRace::Limit(score) > limit) {
          atomicMax(&row->shared->limit, KeyOf(NearRace::Limit(score)));
        }
      }
    }
  }));
}

// The greatest of the row, with a list of what may be drawn where there can be one.
template <typename T>
__device__ Place ReadFirst(TeamRow<T>* row, const Requests& requests, const Request& request) {
  const bool is_probs = requests.is_probs;
  if (request.k == 1) return FindMost(row, is_probs);
  if (request.k > 0 && request.k <= kMostNear)
    return FindNear(row, is_probs, static_cast<int>(request.k));
  if (request.k == 0 && request.HasTopP())
    return FindNear(row, is_probs, ThreadsOfShare<T>(requests.V));
  if (request.k == 0 && !(request.min_p > 0)) {
    const NearRace race = {is_probs ? 0 : Scale::OfLogits(0, request.temperature).factor};
    return FindRacers(row, request, race, is_probs);
  }
  return FindMost(row, is_probs);
}

// The place of the last token that top_k and top_p keep; 0: all are kept. total: of all, where
// wanted.
template <typename T>
__device__ Place Filter(TeamRow<T>* row, const Requests& requests, const Request& request,
                        const Scale& scale, Sum total) {
  const auto mass = [&](Place place) {
    return static_cast<Sum>(MassOf(scale.Weight(ValueOf(place))));
  };
  Place last = 0;
  if (request.k) last = row->FindLast(0, static_cast<Sum>(request.k), [](Place) { return Sum{1}; });
  if (!request.HasTopP()) return last;
  const Place from = requests.top_k_first ? last : 0;
  if (from) total = row->SumFrom(from, mass);
  const Place share = row->FindShare(from, sampling::ShareOf(request.top_p, total), mass);
  return share > last ? share : last;
}

template <typename T>
__device__ void DrawRow(TeamRow<T>* row, const Draws& p, int64_t b, const Request& request) {
  const Requests& requests = p.requests;
  const bool writes = row->part == 0 && threadIdx.x == 0;
  const Place most = request.is_good ? ReadFirst(row, requests, request) : ~Place{0};
  const float value = ValueOf(most);
  if (most == 0 || most == ~Place{0} || !sampling::HasWeights(value, requests.is_probs)) {
    if (writes) p.tokens[b] = -1;
    if (writes && p.logprob) p.logprob[b] = NAN;
    return;
  }
  const Scale scale =
      requests.is_probs ? Scale::OfProbs(value) : Scale::OfLogits(value, request.temperature);
  const bool needs_total =
      p.logprob || (request.k != 1 && request.HasTopP() && !(request.k && requests.top_k_first));
  const Sum total = needs_total ? SumMasses(row, scale) : 0;
  uint32_t token = TokenOf(most);
  if (request.k != 1) {
    const Place last = Filter(row, requests, request, scale, total);
    if (row->listed == 0) row->listed = -1;
    const Sum best = Race(*row, request, scale, last);
    token = TokenOf(row->listed >= 0 ? row->OfBlock(best, Greater()) : row->MostOfTeam(best));
  }
  if (!writes) return;
  p.tokens[b] = static_cast<int32_t>(token);
  if (p.logprob)
    p.logprob[b] = sampling::LogShare(scale, Widen(row->x[token]), request.temperature, total);
}

template <typename T>
__global__ void __launch_bounds__(kTeamThreads) DrawRows(const __grid_constant__ Draws p) {
  TeamRow<T> row(p.parts, p.memory, p.lists);
  for (int64_t b = row.team; b < p.B; b += gridDim.x / p.parts) {
    const Request request = p.requests[b];
    row.Begin(static_cast<const T*>(p.x) + (request.is_good ? request.row : 0) * p.row_step,
              p.requests.V);
    DrawRow(&row, p, b, request);
    __syncthreads();
  }
}

inline int32_t RunDraws(AnyopCall* call, const AnyopTensor* x, const Requests& requests, int64_t B,
                        int32_t* tokens, float* logprob) {
  if (const int32_t status = CheckRows(call, requests, B)) return status;
  if (B == 0) return kAnyopOk;
  const Draws draws = {x->data, x->strides[0], B, requests, 1, nullptr, nullptr, tokens, logprob};
  return WithFloat32Sums(AnyopDtypeOf(x), [&](auto zero) {
    return RunTeams<DrawRows<decltype(zero)>>(call, B, requests.V, draws);
  });
}

}  // namespace
}  // namespace anyop::cuda
