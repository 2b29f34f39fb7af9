// SPDX-License-Identifier: Apache-2.0
// Draws tokens from rows on CUDA: teams of filter_rows_cuda.h. A row is read once from memory, and
// once more for each step that its list does not hold.
#pragma once

#define ANYOP_BLOCKS_MEET 1
#include "anyop/cuda.h"  // with HIP, before draw.h: its memcpy is a device's too
#include "requests.h"
#include "share_rows_cuda.h"

namespace anyop::cuda {
namespace {

using sampling::Request;
using sampling::Requests;

struct Draws {
  const void* x;
  int64_t row_step, B;
  Requests requests;
  int parts, share;
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

// A number of a draw, or `none`: all threads read all of them before they look at one.
template <typename N>
struct Words {
  uint32_t low, high;
  const sampling::PerRow<N>& of;

  __device__ Words(const sampling::PerRow<N>& of, int64_t b) : of(of) {
    const auto* const at = of.data
                               ? static_cast<const uint32_t*>(of.data) + (b * of.step << of.is_wide)
                               : reinterpret_cast<const uint32_t*>(&of);
    low = at[0];
    high = at[of.is_wide];
  }
  __device__ N Or(N none) const {
    if (!of.data) return none;
    if constexpr (std::is_same_v<N, float>) {
      return sampling::FloatOf(low);
    } else {
      return of.is_wide ? static_cast<int64_t>(uint64_t{high} << 32 | low)
                        : static_cast<int32_t>(low);
    }
  }
};
struct RequestWords {
  Words<int64_t> seed, offset, rows, top_k;
  Words<float> temperature, top_p, min_p;

  __device__ RequestWords(const Requests& of, int64_t b)
      : seed(of.seed, b),
        offset(of.offset, b),
        rows(of.rows, b),
        top_k(of.top_k, b),
        temperature(of.temperature, b),
        top_p(of.top_p, b),
        min_p(of.min_p, b) {}
  __device__ Request Read(const Requests& of, int64_t b) const {
    return of.Checked({static_cast<uint64_t>(seed.Or(0)), static_cast<uint64_t>(offset.Or(0)),
                       rows.Or(b), top_k.Or(0), temperature.Or(1), top_p.Or(1), min_p.Or(0), true});
  }
};

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

// Philox of the tokens of one draw, what they have in common computed before: by one thread, for
// all. The first two of ten rounds are short, as only the first counter differs.
struct DrawnWords {
  uint32_t second_low, second_high;  // of the second round: what is added to its first product
  uint32_t first, third[4];          // keys and products that are known
  uint32_t keys[16];                 // of the other rounds

  static constexpr uint32_t kA = 0xD2511F53u, kB = 0xCD9E8D57u, kLow = 0x9E3779B9u,
                            kHigh = 0xBB67AE85u;
  __device__ static uint2 Product(uint32_t a, uint32_t b) {
#if ANYOP_PTX
    uint2 both;
    asm("{ .reg .b64 p; mul.wide.u32 p, %2, %3; mov.b64 {%0, %1}, p; }"
        : "=r"(both.x), "=r"(both.y)
        : "r"(a), "r"(b));
    return both;
#else
    const uint64_t product = uint64_t{a} * b;
    return {static_cast<uint32_t>(product), static_cast<uint32_t>(product >> 32)};
#endif
  }
  __device__ void Set(uint64_t seed, uint64_t offset) {
    uint32_t low = static_cast<uint32_t>(seed), high = static_cast<uint32_t>(seed >> 32);
    // Round 1: {b.y ^ 0 ^ low, b.x, a.y ^ offset_high ^ high, a.x} with a of the token.
    const uint2 b = Product(kB, static_cast<uint32_t>(offset));
    first = static_cast<uint32_t>(offset >> 32) ^ high;
    const uint2 a = Product(kA, b.y ^ low);
    low += kLow, high += kHigh;
    second_low = b.x ^ low;  // {b2.y ^ this, b2.x, a2.y ^ a.x ^ high, a2.x}
    second_high = a.y ^ high;
    third[0] = a.x;
    for (int i = 0; i < 16; i += 2) keys[i] = low += kLow, keys[i + 1] = high += kHigh;
  }
  __device__ PhiloxWords operator()(uint32_t four) const {
    const uint2 a = Product(kA, four);
    const uint2 b = Product(kB, a.y ^ first);
    PhiloxWords words = {{b.y ^ second_low, b.x, second_high ^ a.x, third[0]}};
#pragma unroll
    for (int i = 0; i < 16; i += 2) {
      const uint2 a = Product(kA, words.at[0]), b = Product(kB, words.at[2]);
      words = {{b.y ^ words.at[1] ^ keys[i], b.x, a.y ^ words.at[3] ^ keys[i + 1], a.x}};
    }
    return words;
  }
};

// How a token does in the race of all, nearly: the logarithm of its weight over its exponential.
// That is not below the uniform variable of its word, so that four words need one exponential to be
// behind.
struct NearRace {
  float factor;  // of logits; of probabilities 0

  __device__ float Weight(float x) const { return factor == 0 ? Log2(x) : x * factor; }
  __device__ float Score(float x, uint32_t word) const {
    return Weight(x) - Log2(sampling::ExponentialOf(word));
  }
  // Words above this do not bring x to the limit: an exponential is not below its uniform variable.
  __device__ uint32_t MostWord(float x, float limit) const {
    const float bits = Weight(x) - limit + 32;
    return bits < 32 ? static_cast<uint32_t>(PowerOfTwo(bits)) : ~0u;
  }
  // What is below may be left out where this score is seen: far more than roundings are.
  __device__ static float Limit(float score) { return score - 0.01f - 1e-5f * fabsf(score); }
};

// A value below which no token is kept: `last` is the last one's place, or 0; min_p is not below
// it.
__device__ inline float LeastKept(const Scale& scale, float min_p, Place last) {
  const float least = last ? ValueOf(last) : -INFINITY;
  if (!(min_p > 0)) return least;
  const float of_most = scale.is_probs ? scale.most * (min_p * 0.999f)
                                       : scale.most + (Log2(min_p) - 0.01f) / scale.factor;
  return fmaxf(least, fminf(of_most, scale.most));
}

// Lists who may win the race of tokens down to `last`, as far as the list holds them: kept(x), none
// below `least`.
// seen: of all elements.
template <typename T, typename Kept>
__device__ bool ListRacers(TeamRow<T>* row, const Request& request, const NearRace& race,
                           Seen* seen, Place last, float least, const Kept& kept) {
  TeamShared* const shared = row->shared;
  const int all = row->runs();
  float best = -INFINITY;
  if (threadIdx.x == 0)
    reinterpret_cast<DrawnWords*>(shared->words_of_draw)->Set(request.seed, request.offset);
  __syncthreads();
  const auto& words_of = *reinterpret_cast<const DrawnWords*>(shared->words_of_draw);
  // First what some elements reach, then what of all may be better: one copy of the code.
#pragma unroll 1
  for (int turn = 0; turn < 2; ++turn) {
    const auto see = [&](int v, const float (&x)[kRun]) {
      const float limit = FloatOfKey(*static_cast<volatile unsigned*>(&shared->limit));
      const float greatest = seen->See(x);
      if (greatest < least) return;
      const uint32_t most_word = turn ? race.MostWord(greatest, limit) : ~0u;
      const PhiloxWords words = words_of(static_cast<uint32_t>(v) / 4);
      uint32_t least_word = words.at[0];
#pragma unroll
      for (int j = 1; j < kRun; ++j)
        least_word = words.at[j] < least_word ? words.at[j] : least_word;
      if (least_word > most_word) return;
#pragma unroll
      for (int j = 0; j < kRun; ++j) {
        const float own = x[j];
        const int token = v + j;
        if (words.at[j] > most_word || token >= row->end) continue;
        if (PlaceOf(own, static_cast<uint32_t>(token)) < last || !kept(own)) continue;
        const float score = race.Score(own, words.at[j]);
        best = fmaxf(best, score);
        if (turn == 0 || !(score >= limit && score > -INFINITY)) continue;
        row->Push(atomicAdd(&shared->listed, 1), own, token);
        if (!(score < INFINITY)) {
          shared->listed = kListed + 1;
        } else if (NearRace::Limit(score) > limit) {
          atomicMax(&shared->limit, KeyOf(NearRace::Limit(score)));
        }
      }
    };
    row->template EachRun<2>(turn || all < kTeamThreads ? all : kTeamThreads,
                             seen->is_probs ? 0.0f : -INFINITY, see);
    if (turn) break;
    best = FloatOfKey(static_cast<uint32_t>(row->OfBlock(KeyOf(best), Greater())));
    if (threadIdx.x == 0) {
      shared->limit = KeyOf(NearRace::Limit(best));
      shared->listed = best < INFINITY ? 0 : kListed + 1;
    }
    __syncthreads();
  }
  return row->Gather(seen->IsBad(), KeyOf(seen->most));
}

// The best entry of the first k of what is listed. least: a key that so many reach.
template <typename T>
__device__ Sum RaceFew(TeamRow<T>* row, const Requests& requests, const Request& request,
                       const Scale& scale, unsigned least, Sum total) {
  const int k = static_cast<int>(request.k);
  const int n = row->KeepFew(least, k, [&](Place place) {
    return static_cast<Sum>(MassOf(scale.Weight(ValueOf(place))));
  });
  const TeamList::Ranked own = row->RankKept(n);
  const float x = ValueOf(own.place), weight = own.rank < k ? scale.Weight(x) : 0.0f;
  Sum best = 0;
  if (weight > 0 && (weight >= request.min_p || x == scale.most))
    best = Entry(weight, WordOf(request, TokenOf(own.place)), TokenOf(own.place));
  if (request.HasTopP()) {
    if (requests.top_k_first) {
      if (own.rank == k - 1) row->shared->found[0] = own.before + own.mass;
      __syncthreads();
      total = row->shared->found[0];
    }
    if (own.before >= sampling::ShareOf(request.top_p, total)) best = 0;
  }
  return row->OfBlock(best, Greater());
}

// The place of the last token that top_k and top_p keep; 0: all are kept. total: of all, where
// wanted.
template <typename T>
__device__ Place Filter(TeamRow<T>* row, const Requests& requests, const Request& request,
                        const Scale& scale, const Bins& bins, Sum* total) {
  const auto mass = [&](Place place) {
    return static_cast<Sum>(MassOf(scale.Weight(ValueOf(place))));
  };
  if (request.k == 0) {
    Sum kept;
    return request.HasTopP() ? FindShare(row, scale, bins, request.top_p, total, &kept) : 0;
  }
  const Place last = row->FindCountedFirst(request.k);
  if (!request.HasTopP()) return last;
  const Place from = requests.top_k_first ? last : 0;
  const Sum wanted = sampling::ShareOf(request.top_p, from ? row->SumFrom(from, mass) : *total);
  const Place share = row->FindCounted(from, wanted, mass);
  return share > last ? share : last;
}

template <typename T>
__device__ void DrawRow(TeamRow<T>* row, const Draws& p, int64_t b, unsigned most_of_first) {
  const Requests& requests = p.requests;
  const Request& request = row->shared->request;
  const bool is_probs = requests.is_probs, writes = row->part == 0 && threadIdx.x == 0;
  if (writes) p.tokens[b] = -1;
  if (writes && p.logprob) p.logprob[b] = NAN;
  if (!request.is_good) return;
  const NearRace race = {is_probs ? 0 : Scale::OfLogits(0, request.temperature).factor};
  const bool has_p = request.HasTopP(), few = request.k > 1 && request.k <= kMostNear;
  const bool all_race = request.k == 0 && !has_p && !(request.min_p > 0);
  Seen seen(is_probs);
  Bins bins = {};
  unsigned least = 0;
  Place most, last = 0;
  if (few) {
    const int k = static_cast<int>(request.k);
    const bool good = ListNear(row, is_probs, most_of_first, k, &least);
    most = good && row->listed < 0 ? FindMost(row, is_probs) : row->MostOf(good);
  } else if (all_race) {
    most = row->MostOf(
        ListRacers(row, request, race, &seen, 0, -INFINITY, [](float) { return true; }));
  } else if (request.k == 0 && has_p) {
    most = CountBins(row, is_probs, race.factor, requests.V, &bins);
  } else {
    most = FindMost(row, is_probs);
  }
  const float value = ValueOf(most);
  if (most == 0 || most == ~Place{0} || !sampling::HasWeights(value, is_probs)) return;
  const Scale scale =
      is_probs ? Scale::OfProbs(value) : Scale::OfLogits(value, request.temperature);
  const bool joint = request.k > 1 && has_p && !requests.top_k_first;
  Sum total = p.logprob || joint ? SumMasses(row, scale) : 0;
  uint32_t token = TokenOf(most);
  if (request.k > 1 && row->listed >= 0) {
    token = TokenOf(RaceFew(row, requests, request, scale, least, total));
  } else if (request.k != 1) {
    if (!all_race) {
      last = Filter(row, requests, request, scale, bins, &total);
      const float least_kept = LeastKept(scale, request.min_p, last);
      ListRacers(row, request, race, &seen, last, least_kept, [&](float x) {
        return !(request.min_p > 0) || scale.Weight(x) >= request.min_p || x == scale.most;
      });
    }
    if (row->listed == 0) row->listed = -1;
    const Sum best = Race(*row, request, scale, last);
    token = TokenOf(row->listed >= 0 ? row->OfBlock(best, Greater()) : row->MostOfTeam(best));
  }
  if (!writes) return;
  p.tokens[b] = static_cast<int32_t>(token);
  if (!p.logprob) return;
  const float x = Widen(static_cast<const T*>(p.x)[request.row * p.row_step + token]);
  p.logprob[b] = sampling::LogShare(scale, x, request.temperature, total);
}

template <typename T>
__global__ void __launch_bounds__(kTeamThreads, kTeamBlocks)
    DrawRows(const __grid_constant__ Draws p) {
  TeamRow<T> row(p);
  const Requests& requests = p.requests;
  const auto* const x = static_cast<const T*>(p.x);
  for (int64_t b = row.team(); b < p.B; b += gridDim.x / p.parts) {
    if (!requests.rows.data) row.Prefetch(x + b * p.row_step, requests.V);
    const RequestWords words(requests, b);
    const int64_t r = requests.rows.data ? words.rows.Or(0) : b;
    const bool is_row = r >= 0 && r < requests.N;
    row.Begin(x + (is_row ? r : 0) * p.row_step, requests.V);
    // Before the request is looked at: its numbers come meanwhile.
    const unsigned most = is_row && requests.top_k.data ? MostOfFirst(row) : 0;
    const Request request = words.Read(requests, b);
    if (threadIdx.x == 0) row.shared->request = request;
    __syncthreads();
    DrawRow(&row, p, b, most);
    __syncthreads();
  }
  row.Leave();
}

inline int32_t RunDraws(AnyopCall* call, const AnyopTensor* x, const Requests& requests, int64_t B,
                        int32_t* tokens, float* logprob) {
  if (const int32_t status = CheckRows(call, requests, B)) return status;
  if (B == 0) return kAnyopOk;
  const Draws draws = {x->data, x->strides[0], B,       requests, 1,
                       0,       nullptr,       nullptr, tokens,   logprob};
  return WithFloat32Sums(AnyopDtypeOf(x), [&](auto zero) {
    return RunTeams<DrawRows<decltype(zero)>, 2>(call, B, requests.V, draws);
  });
}

}  // namespace
}  // namespace anyop::cuda
