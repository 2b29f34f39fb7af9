// SPDX-License-Identifier: Apache-2.0
// Draws tokens from rows on CUDA: teams of filter_rows_cuda.h. A row is read once from memory, and
// once more for each step that its list does not hold.
#pragma once

#define ANYOP_BLOCKS_MEET 1
#include "filter_rows_cuda.h"
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
  int32_t* tokens;
  float* logprob;  // NULL where not wanted
};

__device__ inline Sum Entry(float weight, uint32_t word, uint32_t token) {
  return static_cast<Sum>(__float_as_uint(sampling::RaceOf(weight, word))) << 32 |
         static_cast<uint32_t>(~token);
}

// The best entry of a thread's elements down to `last`.
template <typename T>
__device__ Sum Race(const TeamRow<T>& row, const Request& request, const Scale& scale, Place last) {
  Sum best = 0;
  if (last == 0 && !(request.min_p > 0)) {  // of all: a call of Philox for four
    const int64_t end = row.end;
    for (int64_t v = row.begin + 4 * threadIdx.x; v < end; v += 4 * blockDim.x) {
      const PhiloxWords words =
          sampling::WordsOfFour(request.seed, request.offset, static_cast<uint64_t>(v / 4));
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float weight = v + j < end ? scale.Weight(Widen(row.x[v + j])) : 0.0f;
        if (!(weight > 0)) continue;
        const Sum entry = Entry(weight, words.at[j], static_cast<uint32_t>(v + j));
        best = entry > best ? entry : best;
      }
    }
    return best;
  }
  row.Each([&](Place place) {
    if (place < last) return;
    const float x = ValueOf(place), weight = scale.Weight(x);
    if (!(weight > 0) || !(weight >= request.min_p || x == scale.most)) return;
    const uint32_t token = TokenOf(place);
    const PhiloxWords words =
        sampling::WordsOfFour(request.seed, request.offset, uint64_t{token / 4});
    const uint32_t which = token % 4;
    const uint32_t low = which & 1 ? words.at[1] : words.at[0];
    const uint32_t high = which & 1 ? words.at[3] : words.at[2];
    const Sum entry = Entry(weight, which & 2 ? high : low, token);
    best = entry > best ? entry : best;
  });
  return best;
}

// The place of the last token that top_k and top_p keep; 0: all are kept. total: of all, where
// wanted.
template <typename T>
__device__ Place Filter(TeamRow<T>* row, const Requests& requests, const Request& request,
                        const Scale& scale, Place own, Sum total) {
  const auto mass = [&](Place place) {
    return static_cast<Sum>(MassOf(scale.Weight(ValueOf(place))));
  };
  Place last = 0;
  if (request.k) {
    row->ListNear(static_cast<Sum>(request.k), own);
    last = row->FindLast(0, static_cast<Sum>(request.k), [](Place) { return Sum{1}; });
  }
  if (!request.HasTopP()) return last;
  const Place from = requests.top_k_first ? last : 0;
  if (from) {
    Sum kept = 0;
    row->Each([&](Place place) { kept += place >= from ? mass(place) : 0; });
    total = row->SumOfTeam(kept);
  }
  const Place share = row->FindLast(from, sampling::ShareOf(request.top_p, total), mass);
  return share > last ? share : last;
}

template <typename T>
__device__ void DrawRow(TeamRow<T>* row, const Draws& p, int64_t b, const Request& request) {
  const bool writes = row->part == 0 && threadIdx.x == 0;
  Place own = request.is_good ? FindMost(*row, p.requests.is_probs) : ~Place{0};
  const Place most = row->MostOfTeam(own);
  const float value = ValueOf(most);
  if (most == 0 || most == ~Place{0} || !sampling::HasWeights(value, p.requests.is_probs)) {
    if (writes) p.tokens[b] = -1;
    if (writes && p.logprob) p.logprob[b] = NAN;
    return;
  }
  const Scale scale =
      p.requests.is_probs ? Scale::OfProbs(value) : Scale::OfLogits(value, request.temperature);
  Sum total = 0;
  if (p.logprob ||
      (request.k != 1 && request.HasTopP() && !(request.k && p.requests.top_k_first))) {
    row->Each([&](Place place) { total += MassOf(scale.Weight(ValueOf(place))); });
    total = row->SumOfTeam(total);
  }
  uint32_t token = TokenOf(most);
  if (request.k != 1) {
    const Place last = Filter(row, p.requests, request, scale, own, total);
    token = TokenOf(row->MostOfTeam(Race(*row, request, scale, last)));
  }
  if (!writes) return;
  p.tokens[b] = static_cast<int32_t>(token);
  if (p.logprob)
    p.logprob[b] = sampling::LogShare(scale, Widen(row->x[token]), request.temperature, total);
}

template <typename T>
__global__ void __launch_bounds__(kTeamThreads) DrawRows(const __grid_constant__ Draws p) {
  TeamRow<T> row(p.parts, p.memory);
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
  const Draws draws = {x->data, x->strides[0], B, requests, 1, nullptr, tokens, logprob};
  return WithFloat32Sums(AnyopDtypeOf(x), [&](auto zero) {
    return RunTeams<DrawRows<decltype(zero)>>(call, B, requests.V, draws);
  });
}

}  // namespace
}  // namespace anyop::cuda
