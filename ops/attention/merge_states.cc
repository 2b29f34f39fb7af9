// SPDX-License-Identifier: Apache-2.0
// Joins parts of attention row by row. Weights and sums are float64, for float64, else float32;
// parts are added in their order.
#include "anyop/ops/merge_states.h"

#include <cmath>
#include <limits>
#include <vector>

#include "../linear/convert.h"

namespace anyop {
namespace {

constexpr int64_t kGrain = 16384;  // elements worth a thread

template <typename T>
void MergeRow(const MergeStatesArgs& args, int64_t row, std::vector<T>* part, std::vector<T>* sum) {
  const auto lse_of = [&](int64_t n) {
    return static_cast<const float*>(args.lses.data[n].data)[row];
  };
  constexpr T kNothing = -std::numeric_limits<T>::infinity();
  T most = kNothing, total = 0;
  for (int64_t n = 0; n < args.N; ++n) most = std::fmax(most, static_cast<T>(lse_of(n)));
  std::fill(sum->begin(), sum->end(), T(0));
  for (int64_t n = 0; n < args.N; ++n) {
    if (lse_of(n) == kNothing) continue;
    const T weight = std::exp(static_cast<T>(lse_of(n)) - most);
    const AnyopTensor& out = args.outs.data[n];
    total += weight;
    Widen(AnyopDtypeOf(&out), out.data, row * args.E, 1, args.E, part->data());
    for (int64_t e = 0; e < args.E; ++e) (*sum)[e] += weight * (*part)[e];
  }
  const T share = most == kNothing && total == 0 ? T(0) : 1 / total;
  for (T& value : *sum) value *= share;
  Narrow(sum->data(), args.E, AnyopDtypeOf(args.out), args.out->data, row * args.E);
  static_cast<float*>(args.lse->data)[row] = static_cast<float>(most + std::log(total));
}

template <typename T>
int32_t Merge(const MergeStatesArgs& args, AnyopCall* call) {
  const int64_t elements = args.N * (args.E + 1);
  ParallelFor(call, args.numel_X, kGrain / elements + 1, [&](int64_t begin, int64_t end) {
    std::vector<T> part(static_cast<size_t>(args.E)), sum(static_cast<size_t>(args.E));
    for (int64_t row = begin; row < end; ++row) MergeRow(args, row, &part, &sum);
  });
  return kAnyopOk;
}

}  // namespace
}  // namespace anyop

extern "C" int32_t anyop_merge_states_cpu(const MergeStatesArgs* args, AnyopCall* call) {
  if (args->numel_X == 0) return kAnyopOk;
  if (args->out->dtype_bits == 64) return anyop::Merge<double>(*args, call);
  return anyop::Merge<float>(*args, call);
}
