// SPDX-License-Identifier: Apache-2.0
// Joins parts of attention row by row. Shares and sums are float64, for float64, else float32;
// parts are added in their order. The shares of kRows rows are made together, in vectors; then each
// row goes once through the registers, 16 bits too.
#include "anyop/ops/merge_states.h"

#include <algorithm>
#include <vector>

#include "anyop/cpu.h"
#include "anyop/cpu/convert.h"
#include "anyop/cpu/math.h"

namespace anyop {
namespace {

constexpr int64_t kGrain = 16384;  // elements worth a thread
constexpr int64_t kRows = 64;
constexpr float kNothing = -cpu::Bits<float>::kInfinity;

const float* LseOf(const MergeStatesArgs& args, int64_t n, int64_t row) {
  return static_cast<const float*>(args.lses.data[n].data) + row;
}

// Rows first to first + rows: lse, and what part n of row j is multiplied with, shares[n * kRows +
// j].
template <typename Wide>
void SetShares(const MergeStatesArgs& args, int64_t first, int64_t rows, Wide* shares) {
  Wide most[kRows], total[kRows];
  std::fill(most, most + rows, static_cast<Wide>(kNothing));
  std::fill(total, total + rows, Wide(0));
  for (int64_t n = 0; n < args.N; ++n) {
    const float* lse = LseOf(args, n, first);
#pragma omp simd
    for (int64_t j = 0; j < rows; ++j)
      most[j] = lse[j] > most[j] ? static_cast<Wide>(lse[j]) : most[j];
  }
  for (int64_t n = 0; n < args.N; ++n) {
    const float* lse = LseOf(args, n, first);
    Wide* own = shares + n * kRows;
#pragma omp simd
    for (int64_t j = 0; j < rows; ++j) {
      const Wide weight = cpu::Exp(static_cast<Wide>(lse[j]) - most[j]);
      own[j] = lse[j] == kNothing ? Wide(0) : weight;
      total[j] += own[j];
    }
  }
  float* whole = static_cast<float*>(args.lse->data) + first;
#pragma omp simd
  for (int64_t j = 0; j < rows; ++j) {
    whole[j] = static_cast<float>(most[j] + cpu::Log(total[j]));
    total[j] = total[j] == 0 ? Wide(0) : 1 / total[j];
  }
  for (int64_t n = 0; n < args.N; ++n) {
#pragma omp simd
    for (int64_t j = 0; j < rows; ++j) shares[n * kRows + j] *= total[j];
  }
}

// A row of one part, and its share.
template <typename T, typename Wide>
struct Part {
  const T* data;
  Wide share;
};

// to = one, both, or all that comes so far and one more.
template <typename T, typename Out, typename Wide>
void Weigh(int64_t E, const Part<T, Wide>& a, Out* to) {
  cpu::Apply(E, [s = a.share](const auto& x) { return x * s; }, to, a.data);
}
template <typename T, typename Out, typename Wide>
void Weigh(int64_t E, const Part<T, Wide>& a, const Part<T, Wide>& b, Out* to) {
  cpu::Apply(
      E, [s = a.share, t = b.share](const auto& x, const auto& y) { return x * s + y * t; }, to,
      a.data, b.data);
}
template <typename T, typename Out, typename Wide>
void Add(int64_t E, const Wide* sum, const Part<T, Wide>& a, Out* to) {
  cpu::Apply(E, [s = a.share](const auto& x, const auto& y) { return x + y * s; }, to, sum, a.data);
}

template <typename T, typename Wide>
void MergeParts(int64_t E, const Part<T, Wide>* parts, int64_t count, Wide* sum, T* out) {
  if (count == 0) return std::fill(out, out + E, T{});
  if (count == 1) return Weigh(E, parts[0], out);
  if (count == 2) return Weigh(E, parts[0], parts[1], out);
#pragma omp simd
  for (int64_t e = 0; e < E; ++e) sum[e] = cpu::Load<Wide>(parts[0].data[e]) * parts[0].share;
  for (int64_t i = 1; i < count - 1; ++i) {
#pragma omp simd
    for (int64_t e = 0; e < E; ++e) sum[e] += cpu::Load<Wide>(parts[i].data[e]) * parts[i].share;
  }
  Add(E, sum, parts[count - 1], out);
}

template <typename T>
inline void MergeRows(const MergeStatesArgs& args, int64_t begin, int64_t end) {
  using Wide = typename cpu::WideOf<T>::Type;
  std::vector<Wide> shares(static_cast<size_t>(args.N * kRows)), sum(static_cast<size_t>(args.E));
  std::vector<Part<T, Wide>> parts(static_cast<size_t>(args.N));
  for (int64_t first = begin; first < end; first += kRows) {
    const int64_t rows = std::min(kRows, end - first);
    SetShares(args, first, rows, shares.data());
    for (int64_t j = 0; j < rows; ++j) {
      int64_t count = 0;
      for (int64_t n = 0; n < args.N; ++n) {
        if (*LseOf(args, n, first + j) == kNothing) continue;
        const T* data = static_cast<const T*>(args.outs.data[n].data) + (first + j) * args.E;
        parts[static_cast<size_t>(count++)] = {data, shares[static_cast<size_t>(n * kRows + j)]};
      }
      MergeParts(args.E, parts.data(), count, sum.data(),
                 static_cast<T*>(args.out->data) + (first + j) * args.E);
    }
  }
}

ANYOP_CPU_CLONES void Merge(const MergeStatesArgs& args, int64_t begin, int64_t end) {
  switch (AnyopDtypeOf(args.out)) {
    case kAnyopFloat64:
      return MergeRows<double>(args, begin, end);
    case kAnyopFloat16:
      return MergeRows<cpu::float16>(args, begin, end);
    case kAnyopBFloat16:
      return MergeRows<cpu::bfloat16>(args, begin, end);
    default:
      return MergeRows<float>(args, begin, end);
  }
}

}  // namespace
}  // namespace anyop

extern "C" int32_t anyop_merge_states_cpu(const MergeStatesArgs* args, AnyopCall* call) {
  if (args->numel_X == 0) return kAnyopOk;
  const int64_t elements = args->N * (args->E + 1);
  anyop::ParallelFor(call, args->numel_X, anyop::kGrain / elements + 1,
                     [&](int64_t begin, int64_t end) { anyop::Merge(*args, begin, end); });
  return kAnyopOk;
}
