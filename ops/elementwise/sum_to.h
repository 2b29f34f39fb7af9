// SPDX-License-Identifier: Apache-2.0
// The gradient of an input that was broadcast: scale * grad, or grad * factor, summed over the
// sizes that the input repeated. The same bits for any number of threads.
#ifndef ANYOP_OPS_ELEMENTWISE_SUM_TO_H_
#define ANYOP_OPS_ELEMENTWISE_SUM_TO_H_

#include "anyop/cpu/map.h"
#include "anyop/cpu/rows.h"
#include "shaped_as.h"

namespace anyop::cpu {

// Dimensions that are kept, or summed over: sizes and how far apart elements of grad, factor and
// result lie.
struct Loop {
  int dims = 0;
  int64_t count = 1;
  int64_t size[kMaxRank], step[3][kMaxRank];

  void Put(int64_t n, int64_t grad, int64_t factor, int64_t out) {
    size[dims] = n;
    step[0][dims] = grad, step[1][dims] = factor, step[2][dims] = out;
    ++dims;
    count *= n;
  }
  int64_t Offset(int which, int64_t index) const {
    int64_t offset = 0;
    for (int d = dims - 1; d >= 0; --d) {
      offset += index % size[d] * step[which][d];
      index /= size[d];
    }
    return offset;
  }
};

// The sum as runs of the innermost dimension. Where that is kept, a unit of work is a block of it
// and whole runs are added; where it is summed over, a unit is one element and runs are folded.
// The terms of a unit are cut into parts when there are few units.
struct SumTo {
  static constexpr int64_t kUnits = 64, kLeastTerms = 32;

  const AnyopTensor *grad, *factor, *out;  // factor may be nullptr
  double scale;
  bool inner_kept = true, is_sum = false;
  int64_t inner = 1, inner_step = 0;  // the innermost dimension; the factor's stride in it
  int64_t blocks = 1;                 // of a run
  int64_t units = 0, terms = 0, parts = 1, out_count = 1;
  Loop kept, summed;
  double* partial = nullptr;  // parts by out_count

  // grad and factor have one shape, to which that of `result` can be broadcast.
  SumTo(const AnyopTensor* gradient, const AnyopTensor* times, double scaled,
        const AnyopTensor* result)
      : grad(gradient), factor(times), out(result), scale(scaled) {
    int64_t own_stride = 1;
    for (int d = out->ndim - 1; d >= 0; --d) out_count *= out->shape[d];
    Loop dims;  // innermost first, neighbours of one kind merged
    bool kinds[kMaxRank];
    for (int d = grad->ndim - 1; d >= 0; --d) {
      const int64_t size = grad->shape[d];
      const int own = d - (grad->ndim - out->ndim);
      if (size == 1) continue;
      const bool keeps = own >= 0 && out->shape[own] == size;
      is_sum = is_sum || !keeps;
      const int64_t other = factor ? factor->strides[d] : 0;
      const int last = dims.dims - 1;
      if (last >= 0 && kinds[last] == keeps && other == dims.step[1][last] * dims.size[last]) {
        dims.size[last] *= size;
        dims.count *= size;
      } else {
        kinds[dims.dims] = keeps;
        dims.Put(size, grad->strides[d], other, keeps ? own_stride : 0);
      }
      if (keeps) own_stride *= size;
    }
    Divide(dims, kinds);
  }

  // The results of a unit: how many, and where the first one lies.
  int64_t SizeOfUnit(int64_t unit) const {
    if (!inner_kept) return 1;
    const int64_t left = inner - unit % blocks * kBlock;
    return left < kBlock ? left : kBlock;
  }
  int64_t PlaceOfUnit(int64_t unit) const {
    return inner_kept ? kept.Offset(2, unit / blocks) + unit % blocks * kBlock
                      : kept.Offset(2, unit);
  }

 private:
  void Divide(const Loop& dims, const bool* kinds) {
    if (dims.dims > 0) {
      inner = dims.size[0];
      inner_step = dims.step[1][0];
      inner_kept = kinds[0];
    }
    for (int d = dims.dims - 1; d > 0; --d) {
      Loop& loop = kinds[d] ? kept : summed;
      loop.Put(dims.size[d], dims.step[0][d], dims.step[1][d], dims.step[2][d]);
    }
    blocks = (inner + kBlock - 1) / kBlock;
    units = kept.count * (inner_kept ? blocks : 1);
    terms = summed.count * (inner_kept ? 1 : blocks);
    if (units > 0 && units < kUnits) parts = kUnits / units;
    if (parts > terms / kLeastTerms) parts = terms / kLeastTerms;
    if (parts < 1) parts = 1;
  }
};

// n elements as Wide, from any stride; in place where possible. buffer, raw: for kBlock of them.
template <typename Wide>
inline const Wide* ReadRun(const AnyopTensor* tensor, int64_t offset, int64_t step, int64_t n,
                           Wide* buffer, char* raw) {
  using Others = Types<float16, bfloat16, float>;
  const AnyopDtype dtype = AnyopDtypeOf(tensor);
  const int bytes = tensor->dtype_bits / 8;
  const char* from = static_cast<const char*>(tensor->data) + offset * bytes;
  const bool repeats = step == 0;
  if (step != 1 && n > 1 && !repeats) {
    CopyRun(bytes, from, step * bytes, n, raw, bytes);
    from = raw;
  }
  if (!repeats && dtype == kDtype<Wide>) return reinterpret_cast<const Wide*>(from);
  if (dtype == kDtype<Wide>) {
    __builtin_memcpy(buffer, from, sizeof(Wide));
  } else {
    Widen(Others(), dtype, from, repeats ? 1 : n, buffer);
  }
  if (repeats) {
    for (int64_t i = 1; i < n; ++i) buffer[i] = buffer[0];
  }
  return buffer;
}

inline void WriteRun(const double* sums, int64_t n, const AnyopTensor* to, int64_t at) {
  void* out = static_cast<char*>(to->data) + at * (to->dtype_bits / 8);
  const AnyopDtype dtype = AnyopDtypeOf(to);
  if (dtype == kAnyopFloat64) return NarrowTo(sums, n, static_cast<double*>(out));
  if (dtype == kAnyopFloat32) return NarrowTo(sums, n, static_cast<float*>(out));
  float single[kBlock];
  NarrowTo(sums, n, single);
  Narrow(Types<float16, bfloat16>(), single, n, dtype, out);
}

// As many additions in a row are made in float32, see FoldBlock; then the sum goes to `sums`.
inline bool Flushes(int64_t term, bool is_last) { return term % 64 == 63 || is_last; }
template <typename Wide>
inline void Flush(int64_t n, Wide* sum, double* sums) {
  Apply(n, [](double s, Wide p) { return s + static_cast<double>(p); }, sums, sums, sum);
  for (int64_t j = 0; j < n; ++j) sum[j] = 0;
}

// Adds four runs of n elements from `at` on, one after the other: sums are read and written once.
template <typename T, typename Wide>
inline void AddFour(const AnyopTensor* from, const int64_t (&at)[4], int64_t n, Wide* sum) {
  const T* g = static_cast<const T*>(from->data);
  const auto add = [](const auto& s, const auto& a, const auto& b, const auto& c, const auto& d) {
    return s + a + b + c + d;
  };
  const Wide* before = sum;
  if constexpr (sizeof(T) == 2) {
    ApplyInRegisters(n, add, sum, before, g + at[0], g + at[1], g + at[2], g + at[3]);
  } else {
    Apply(n, add, sum, before, g + at[0], g + at[1], g + at[2], g + at[3]);
  }
}
template <typename Wide>
inline void AddFour(const AnyopTensor* from, const int64_t (&at)[4], int64_t n, Wide* sum) {
  const AnyopDtype dtype = AnyopDtypeOf(from);
  if constexpr (sizeof(Wide) == 4) {
    if (dtype == kAnyopFloat16) return AddFour<float16>(from, at, n, sum);
    if (dtype == kAnyopBFloat16) return AddFour<bfloat16>(from, at, n, sum);
  }
  AddFour<Wide, Wide>(from, at, n, sum);
}

// One part of one unit: up to kBlock sums, of which as many as `SizeOfUnit`.
template <typename Wide>
inline void AddUnit(const SumTo& s, int64_t unit, int64_t part, double* sums) {
  alignas(64) Wide grads[kBlock], factors[kBlock], sum[kBlock];
  alignas(64) char raw[kBlock * 8];
  const int64_t pieces = s.inner_kept ? 1 : s.blocks;  // of one run, one after the other
  const int64_t k = s.inner_kept ? unit / s.blocks : unit;
  const int64_t begin = s.terms * part / s.parts, end = s.terms * (part + 1) / s.parts;
  const int64_t width = s.SizeOfUnit(unit);
  for (int64_t j = 0; j < width; ++j) sums[j] = 0, sum[j] = 0;
  for (int64_t t = begin; t < end; ++t) {
    const int64_t first = (s.inner_kept ? unit % s.blocks : t % pieces) * kBlock;
    const int64_t n = s.inner - first < kBlock ? s.inner - first : kBlock, run = t / pieces;
    const int64_t at = s.kept.Offset(0, k) + s.summed.Offset(0, run) + first;
    if (s.inner_kept && !s.factor && (t - begin) % 4 == 0 && t + 4 <= end) {
      int64_t four[4] = {at};
      for (int i = 1; i < 4; ++i) four[i] = at + s.summed.Offset(0, t + i) - s.summed.Offset(0, t);
      AddFour(s.grad, four, n, sum);
      t += 3;
      if (Flushes(t - begin, t + 1 == end)) Flush(n, sum, sums);
      continue;
    }
    const Wide* g = ReadRun(s.grad, at, 1, n, grads, raw);
    const Wide* f = nullptr;
    if (s.factor) {
      const int64_t from = s.kept.Offset(1, k) + s.summed.Offset(1, run) + first * s.inner_step;
      f = ReadRun(s.factor, from, s.inner_step, n, factors, raw);
    }
    if (!s.inner_kept) {
      sums[0] += f ? SumBlock(
                         n, [](Wide g, Wide f) { return g * f; }, g, f)
                   : SumBlock(n, [](Wide g) { return g; }, g);
      continue;
    }
    if (f) {
      Apply(n, [](Wide s, Wide g, Wide f) { return s + g * f; }, sum, sum, g, f);
    } else {
      Apply(n, [](Wide s, Wide g) { return s + g; }, sum, sum, g);
    }
    if (Flushes(t - begin, t + 1 == end)) Flush(n, sum, sums);
  }
  for (int64_t j = 0; j < width; ++j) sums[j] *= s.scale;
}

// Units and parts [begin, end), parts of one unit side by side.
template <typename Wide>
inline void AddUnits(const SumTo& s, int64_t begin, int64_t end) {
  double sums[kBlock];
  for (int64_t i = begin; i < end; ++i) {
    const int64_t unit = i / s.parts, part = i % s.parts;
    AddUnit<Wide>(s, unit, part, sums);
    const int64_t at = s.PlaceOfUnit(unit), n = s.SizeOfUnit(unit);
    if (s.parts == 1) {
      WriteRun(sums, n, s.out, at);
    } else {
      __builtin_memcpy(s.partial + part * s.out_count + at, sums, n * sizeof(double));
    }
  }
}
[[maybe_unused]] ANYOP_CPU_CLONES void RunUnits(const SumTo& s, int64_t begin, int64_t end) {
  WithFloat(AnyopDtypeOf(s.grad), [&](auto wide) { AddUnits<decltype(wide)>(s, begin, end); });
}

// The parts of results [begin, end), added in order.
inline void JoinParts(const SumTo& s, int64_t begin, int64_t end) {
  for (int64_t n, i = begin; i < end; i += n) {
    n = end - i < kBlock ? end - i : kBlock;
    double sums[kBlock];
    for (int64_t j = 0; j < n; ++j) sums[j] = 0;
    for (int64_t part = 0; part < s.parts; ++part) {
      const double* from = s.partial + part * s.out_count + i;
      for (int64_t j = 0; j < n; ++j) sums[j] += from[j];
    }
    WriteRun(sums, n, s.out, i);
  }
}

inline int32_t RunSum(AnyopCall* call, SumTo s) {
  if (s.parts > 1) {
    s.partial = static_cast<double*>(
        call->workspace(call, s.parts * s.out_count * int64_t{sizeof(double)}));
    if (!s.partial) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  }
  const int64_t count = s.units * s.parts;
  const int64_t elements = s.terms / s.parts * (s.inner < kBlock ? s.inner : kBlock);
  ParallelFor(call, count, kGrain / (elements + 1) + 1,
              [&](int64_t begin, int64_t end) { RunUnits(s, begin, end); });
  if (s.parts == 1) return kAnyopOk;
  ParallelFor(call, s.out_count, kGrain / s.parts + 1,
              [&](int64_t begin, int64_t end) { JoinParts(s, begin, end); });
  return kAnyopOk;
}

}  // namespace anyop::cpu

#endif  // ANYOP_OPS_ELEMENTWISE_SUM_TO_H_
