// SPDX-License-Identifier: Apache-2.0
// Rows of the sampling operators on the CPU: one thread holds a row as float32 with what its
// tokens weigh, finds the last token that a filter keeps by counting digits, and draws.
#ifndef ANYOP_OPS_SAMPLING_FILTER_ROWS_H_
#define ANYOP_OPS_SAMPLING_FILTER_ROWS_H_

#include <algorithm>
#include <functional>

#include "../linear/lanes.h"
#include "anyop/cpu/rows.h"
#include "draw.h"

namespace anyop::sampling {

inline void WidenRow(AnyopDtype dtype, const char* from, int64_t V, float* x) {
  cpu::Widen(cpu::Types<float, cpu::float16, cpu::bfloat16>(), dtype, from, V, x);
}
// The greatest; NaN where one is, or a probability is below 0.
ANYOP_CPU_CLONES float FindMost(const float* x, int64_t V, float least) {
  float most = -INFINITY;
  int bad = 0;
#pragma omp simd reduction(max : most) reduction(| : bad)
  for (int64_t i = 0; i < V; ++i) {
    most = x[i] > most ? x[i] : most;
    bad |= !(x[i] >= least);
  }
  return bad ? NAN : most;
}
ANYOP_CPU_CLONES void WeighRow(const float* x, int64_t V, Scale scale, float* w) {
#pragma omp simd
  for (int64_t i = 0; i < V; ++i) w[i] = scale.Weight(x[i]);
}
// Nothing weighs anything that is below least, or from end on not above it.
ANYOP_CPU_CLONES void CutBelow(const float* x, int64_t V, float least, int64_t end, float* w) {
#pragma omp simd
  for (int64_t i = 0; i < end; ++i) w[i] = x[i] >= least ? w[i] : 0;
#pragma omp simd
  for (int64_t i = end; i < V; ++i) w[i] = x[i] > least ? w[i] : 0;
}
constexpr int64_t kTopped = 64;  // elements whose greatest is looked at first
ANYOP_CPU_CLONES void FindTops(const float* x, int64_t blocks, float* tops) {
  for (int64_t block = 0; block < blocks; ++block) {
    const float* from = x + block * kTopped;
    float most = from[0];
#pragma omp simd reduction(max : most)
    for (int64_t i = 0; i < kTopped; ++i) most = from[i] > most ? from[i] : most;
    tops[block] = most;
  }
}
ANYOP_CPU_CLONES void DropLight(const float* x, int64_t V, float most, float min_p, float* w) {
#pragma omp simd
  for (int64_t i = 0; i < V; ++i) w[i] = w[i] >= min_p || x[i] == most ? w[i] : 0;
}
ANYOP_CPU_CLONES uint64_t SumMasses(const float* w, int64_t V) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < V; ++i) sum += MassOf(w[i]);
  return sum;
}

constexpr int64_t kRaced = 512;  // tokens drawn at a time
ANYOP_CPU_CLONES float RaceBlock(uint64_t seed, uint64_t offset, int64_t first, const float* w,
                                 float* races) {
  uint32_t words[kRaced];
#pragma omp simd
  for (int64_t four = 0; four < kRaced / 4; ++four) {
    const PhiloxWords drawn = WordsOfFour(seed, offset, static_cast<uint64_t>(first / 4 + four));
    for (int j = 0; j < 4; ++j) words[4 * four + j] = drawn.at[j];
  }
  float most = 0;
#pragma omp simd reduction(max : most)
  for (int64_t i = 0; i < kRaced; ++i) {
    races[i] = RaceOf(w[i], words[i]);
    most = races[i] > most ? races[i] : most;
  }
  return most;
}

// The token that wins, or -1 where none weighs anything.
inline int32_t DrawToken(const Request& request, const float* w, int64_t V) {
  float best = 0, races[kRaced], rest[kRaced];
  int64_t token = -1;
  for (int64_t first = 0; first < V; first += kRaced) {
    const int64_t n = std::min(kRaced, V - first);
    const float* block = w + first;
    if (std::all_of(block, block + n, [](float weight) { return weight == 0; })) continue;
    if (n < kRaced) {
      std::fill(std::copy_n(block, n, rest), rest + kRaced, 0.0f);
      block = rest;
    }
    const float most = RaceBlock(request.seed, request.offset, first, block, races);
    if (!(most > best)) continue;
    best = most;
    token = first + (std::find(races, races + n, most) - races);
  }
  return static_cast<int32_t>(token);
}

// The places from the first one to `from`; how many.
inline int64_t ListFrom(const float* x, int64_t V, Place from, Place* list) {
  const float least = ValueOf(from);
  int64_t n = 0;
  for (int64_t i = 0; i < V; ++i) {
    if (x[i] < least) continue;
    const Place place = PlaceOf(x[i], static_cast<uint32_t>(i));
    if (place >= from) list[n++] = place;
  }
  return n;
}

// The place of the last token that is needed, from the first on, until measures add up to wanted;
// all that comes behind `from` is left out. list: V places.
template <typename Measure>
Place FindLast(const float* x, int64_t V, Place from, uint64_t wanted, Place* list,
               const Measure& measure) {
  int64_t n = V;
  if (from) n = ListFrom(x, V, from, list);
  for (int level = 0; level < kLevels; ++level) {
    uint64_t sums[kDigits] = {};
    const auto place_of = [&](int64_t i) {
      return level || from ? list[i] : PlaceOf(x[i], static_cast<uint32_t>(i));
    };
    for (int64_t i = 0; i < n; ++i) {
      const Place place = place_of(i);
      sums[DigitOf(place, level)] += measure(TokenOf(place));
    }
    unsigned digit = kDigits - 1;
    while (digit > 0 && sums[digit] < wanted) wanted -= sums[digit--];
    int64_t found = 0;
    for (int64_t i = 0; i < n; ++i) {
      const Place place = place_of(i);
      if (DigitOf(place, level) == digit) list[found++] = place;
    }
    n = found;
    if (n <= 1) break;
  }
  return n ? list[0] : from;
}

// A row with its filters. Memory: V floats, V floats, V places.
class Row {
 public:
  static int64_t Bytes(int64_t V) { return (V + 7) / 8 * 8 * 16; }
  Row(char* memory, int64_t V)
      : x(reinterpret_cast<float*>(memory)),
        w(x + (V + 7) / 8 * 8),
        V(V),
        list_(reinterpret_cast<Place*>(w + (V + 7) / 8 * 8)) {}

  // Whether it has a distribution.
  bool Read(AnyopDtype dtype, const char* from, bool is_probs) {
    WidenRow(dtype, from, V, x);
    most = FindMost(x, V, is_probs ? 0.0f : -INFINITY);
    return HasWeights(most, is_probs);
  }
  void Weigh(const Scale& scale) { WeighRow(x, V, scale, w); }
  void Drop(float min_p) { DropLight(x, V, most, min_p, w); }
  uint64_t total() const { return SumMasses(w, V); }

  Place KeepFirst(int64_t k) {
    if (k == 1) return PlaceOf(most, static_cast<uint32_t>(std::find(x, x + V, most) - x));
    if (const int64_t n = ListFirst(k)) {
      std::nth_element(list_, list_ + k - 1, list_ + n, std::greater<>());
      return list_[k - 1];
    }
    return FindLast(x, V, 0, static_cast<uint64_t>(k), list_, [](uint32_t) { return 1; });
  }
  Place KeepShare(float p, Place from, uint64_t total) {
    return FindLast(x, V, from, ShareOf(p, total), list_,
                    [this](uint32_t token) { return MassOf(w[token]); });
  }
  // Behind the last place, if there is one, nothing weighs anything.
  void Cut(Place last) {
    if (last) CutBelow(x, V, ValueOf(last), int64_t{TokenOf(last)} + 1, w);
  }

  float *x, *w, most = 0;
  const int64_t V;

 private:
  // Lists k places at least, the first among them, and returns how many; 0: it would be too many.
  // So many blocks have an element that is not below the k-th greatest of their tops.
  int64_t ListFirst(int64_t k) {
    const int64_t blocks = V / kTopped, room = V - blocks;
    if (blocks < k) return 0;
    auto* tops = reinterpret_cast<float*>(list_ + room);
    auto* order = tops + blocks;
    FindTops(x, blocks, tops);
    std::copy_n(tops, blocks, order);
    std::nth_element(order, order + k - 1, order + blocks, std::greater<>());
    const float least = order[k - 1];
    int64_t n = 0;
    for (int64_t first = 0; first < V; first += kTopped) {
      const int64_t block = first / kTopped, end = std::min(first + kTopped, V);
      if (block < blocks && tops[block] < least) continue;
      if (n + kTopped > room) return 0;
      for (int64_t i = first; i < end; ++i)
        if (x[i] >= least) list_[n++] = PlaceOf(x[i], static_cast<uint32_t>(i));
    }
    return n;
  }

  Place* list_;
};

// body(row, b) for b below count, with memory for a row of V.
template <typename Body>
int32_t ForRows(AnyopCall* call, int64_t count, int64_t V, const Body& body) {
  if (count == 0) return kAnyopOk;
  const int64_t lanes = CountLanes(count), bytes = (Row::Bytes(V) + 63) / 64 * 64;
  auto* memory = static_cast<char*>(call->workspace(call, lanes * bytes));
  if (!memory) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  ForTasks(call, count, lanes, [&](int64_t lane, int64_t b) {
    Row row(memory + lane * bytes, V);
    body(row, b);
  });
  return kAnyopOk;
}

}  // namespace anyop::sampling

#endif  // ANYOP_OPS_SAMPLING_FILTER_ROWS_H_
