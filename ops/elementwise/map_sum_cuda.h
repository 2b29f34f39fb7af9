// SPDX-License-Identifier: Apache-2.0
// A function of elements on CUDA whose values are summed over some dimensions, as gradients of what
// was broadcast are; what it says besides of each element is written in the same pass.
//
// A block has some sums (columns) and threads (lanes) for each, side by side where memory is: lanes
// of one sum where the innermost dimension is summed over, else columns. A lane takes 16 bytes of
// each operand at once where they lie so, four times before it computes. 64 values are summed in
// float32, all else in float64. Few sums of many values are cut into parts, added in order: the
// same bits each time.
#pragma once

#include "anyop/cuda/map.h"
#include "anyop/cuda/parts.h"
#include "shaped_as.h"

namespace anyop::cuda {
namespace {

constexpr int kSumThreads = 256, kSumBatch = 4;

template <int kIn>
struct SumOperands {
  Walk<kIn + 2> kept;    // inputs, what is written, the sum
  Walk<kIn + 1> summed;  // inputs, what is written
  char* data[kIn + 2];   // of what is not wanted: NULL
  AnyopDtype dtype[kIn + 2];
  bool repeats[kIn] = {};
  bool apart = false;        // what is written is no vectors: the sums do not depend on that
  int64_t written_step = 1;  // then, from element to element
  bool fold = false;         // pieces lie along what is summed over
  int columns = 1;           // of a block
  double scale = 1;          // of the sum
  int64_t parts = 1, count = 1;
  double* partial = nullptr;  // (parts, count)
};

// Of one input: 16 bytes, or one element of any dtype.
template <typename T, int kPer>
struct HeldItem {
  Item<T> item;
};
template <typename T>
struct HeldItem<T, 1> {
  Wide<T> value;
};
template <typename T, int kPer, int kIn>
__device__ HeldItem<T, kPer> ReadOperand(const SumOperands<kIn>& p, int o, int64_t at) {
  if constexpr (kPer == 1) {
    return {ReadAs<Wide<T>>(p.data[o], at, p.dtype[o])};
  } else {
    return {ReadItem<T>(p.data[o], at, p.repeats[o])};
  }
}
template <typename T, int kPer>
__device__ Wide<T> ElementOf(const HeldItem<T, kPer>& held, int k) {
  if constexpr (kPer == 1) {
    return held.value;
  } else {
    return Widen(held.item.at[k]);
  }
}
template <typename T, int kPer, int kIn>
__device__ void WriteOperand(const SumOperands<kIn>& p, int64_t at, const Wide<T> (&v)[kPer]) {
  char* data = p.data[kIn];
  if constexpr (kPer == 1) {
    WriteAs(data, at, p.dtype[kIn], v[0]);
  } else if (p.apart) {
#pragma unroll
    for (int k = 0; k < kPer; ++k)
      reinterpret_cast<T*>(data)[at + k * p.written_step] = Narrow<T>(v[k]);
  } else {
    Unpacked<T> wide;
#pragma unroll
    for (int k = 0; k < kPer; ++k) wide.at[k] = v[k];
    *reinterpret_cast<uint4*>(reinterpret_cast<T*>(data) + at) = Pack<T>(wide);
  }
}

// f(in, written) returns what is summed, and sets what is written.
template <typename T, int kPer, int kIn, typename F>
__global__ void __launch_bounds__(kSumThreads, 2)
    SumOver(const __grid_constant__ SumOperands<kIn> p, const F f) {
  using W = Wide<T>;
  __shared__ double sums[kSumThreads][kPer];
  const int thread = static_cast<int>(threadIdx.x), lanes = kSumThreads / p.columns;
  const int column = p.fold ? thread / lanes : thread % p.columns;
  const int lane = p.fold ? thread % lanes : thread / p.columns;
  const int64_t part = blockIdx.x % p.parts, unit = blockIdx.x / p.parts * p.columns + column;
  const bool inside = unit < p.kept.items;
  const Places<kIn + 2> at = PlacesOf(p.kept, inside ? unit : 0);
  const int64_t end = inside ? p.summed.items * (part + 1) / p.parts : 0;
  double whole[kPer] = {};
  for (int64_t t = p.summed.items * part / p.parts + lane; t < end;) {
    W few[kPer] = {};
    for (int turn = 0; turn < 64 / kSumBatch && t < end; ++turn, t += kSumBatch * lanes) {
      HeldItem<T, kPer> in[kSumBatch][kIn];
      int64_t to[kSumBatch];
#pragma unroll
      for (int j = 0; j < kSumBatch; ++j) {
        if (t + j * lanes >= end) break;
        const Places<kIn + 1> term = PlacesOf(p.summed, t + j * lanes);
        to[j] = at.at[kIn] + term.at[kIn];
#pragma unroll
        for (int o = 0; o < kIn; ++o) in[j][o] = ReadOperand<T, kPer>(p, o, at.at[o] + term.at[o]);
      }
#pragma unroll
      for (int j = 0; j < kSumBatch; ++j) {
        if (t + j * lanes >= end) break;
        W written[kPer];
#pragma unroll
        for (int k = 0; k < kPer; ++k) {
          W v[kIn];
#pragma unroll
          for (int o = 0; o < kIn; ++o) v[o] = ElementOf<T, kPer>(in[j][o], k);
          few[k] += f(v, written[k]);
        }
        if (p.data[kIn]) WriteOperand<T, kPer>(p, to[j], written);
      }
    }
#pragma unroll
    for (int k = 0; k < kPer; ++k) whole[k] += static_cast<double>(few[k]);
  }
  if (!p.data[kIn + 1]) return;
#pragma unroll
  for (int k = 0; k < kPer; ++k) sums[thread][k] = whole[k];
  for (int step = lanes / 2; step; step /= 2) {
    __syncthreads();
    if (lane >= step) continue;
    const int other = thread + (p.fold ? step : step * p.columns);
#pragma unroll
    for (int k = 0; k < kPer; ++k) sums[thread][k] += sums[other][k];
  }
  if (lane || !inside) return;
  const auto write = [&](int64_t place, double sum) {
    if (p.parts > 1) {
      p.partial[part * p.count + place] = sum * p.scale;
    } else {
      WriteFloating(p.data[kIn + 1], place, p.dtype[kIn + 1], sum * p.scale);
    }
  };
  if (p.fold) {
    double sum = sums[thread][0];
    for (int k = 1; k < kPer; ++k) sum += sums[thread][k];
    return write(at.at[kIn + 1], sum);
  }
#pragma unroll 1
  for (int k = 0; k < kPer; ++k) write(at.at[kIn + 1] + k, sums[thread][k]);
}

// A tensor with some of its dimensions.
struct SomeDims {
  AnyopTensor tensor;
  int64_t shape[64], strides[64];

  SomeDims() = default;
  SomeDims(const SomeDims&) = delete;
  void Begin(const AnyopTensor* of) {
    tensor = *of;
    tensor.ndim = 0;
    tensor.shape = shape;
    tensor.strides = strides;
  }
  void Put(int64_t size, int64_t stride) {
    shape[tensor.ndim] = size;
    strides[tensor.ndim++] = stride;
  }
};

// The operands' dimensions, those that are kept in `sum` and those that are not.
template <int kIn>
struct SumDims {
  SomeDims kept[kIn + 2], summed[kIn + 1];
  const AnyopTensor *kept_views[kIn + 2], *summed_views[kIn + 1];
  bool inner_summed = false;

  SumDims(const AnyopTensor* const (&operands)[kIn + 1], const AnyopTensor* sum) {
    for (int o = 0; o < kIn + 2; ++o) {
      kept[o].Begin(o > kIn ? sum : operands[o]);
      kept_views[o] = &kept[o].tensor;
      if (o > kIn) continue;
      summed[o].Begin(operands[o]);
      summed_views[o] = &summed[o].tensor;
    }
    const AnyopTensor* first = operands[0];
    int64_t own_strides[64], stride = 1;  // the sum is contiguous
    for (int d = sum->ndim - 1; d >= 0; stride *= sum->shape[d--]) own_strides[d] = stride;
    for (int d = 0; d < first->ndim; ++d) {
      const int64_t size = first->shape[d];
      const int own = d - (first->ndim - sum->ndim);
      if (size == 1) continue;
      const bool keeps = own >= 0 && sum->shape[own] == size;
      inner_summed = !keeps;
      for (int o = 0; o <= kIn; ++o) (keeps ? kept : summed)[o].Put(size, operands[o]->strides[d]);
      if (keeps) kept[kIn + 1].Put(size, own_strides[own]);
    }
  }
};

// Whether operands [begin, end) that are not repeated step by multiples.
template <int kOperands>
bool AreMultiples(const Walk<kOperands>& walk, const bool* repeats, int count, int begin, int end) {
  for (int o = begin; o < end; ++o) {
    for (int d = 0; d < walk.ndim; ++d)
      if (!repeats[o] && walk.step[o][d] % count) return false;
  }
  return true;
}

// Pieces of count elements, where all inputs allow them.
template <int kIn>
bool DivideSum(SumOperands<kIn>* p, int count) {
  SumOperands<kIn> cut = *p;
  bool repeats[kIn + 2] = {};
  if (p->fold) {
    char* data[kIn + 1];
    bool of_summed[kIn + 1] = {};
    for (int o = 0; o <= kIn; ++o) data[o] = p->data[o];
    if (!cut.summed.Divide(count, kIn, data, of_summed, kIn)) return false;
    for (int o = 0; o < kIn; ++o) repeats[o] = of_summed[o];
    if (!AreMultiples(cut.kept, repeats, count, 0, kIn)) return false;
    cut.written_step = p->summed.step[kIn][p->summed.ndim - 1];
  } else {
    if (!cut.kept.Divide(count, kIn, p->data, repeats, kIn)) return false;
    if (!AreMultiples(cut.summed, repeats, count, 0, kIn)) return false;
    cut.written_step = p->kept.step[kIn][p->kept.ndim - 1];
  }
  for (int o = 0; o < kIn; ++o) cut.repeats[o] = repeats[o];
  repeats[kIn] = false;
  cut.apart = cut.written_step != 1 || !IsAligned(p->data[kIn], 16) ||
              !AreMultiples(cut.kept, repeats, count, kIn, kIn + 1) ||
              !AreMultiples(cut.summed, repeats, count, kIn, kIn + 1);
  *p = cut;
  return true;
}

template <typename T, int kPer, int kIn, typename F>
int32_t LaunchSum(AnyopCall* call, SumOperands<kIn> p, const F& f) {
  Limits limits;
  if (int32_t status = ReadLimits(call, &limits)) return status;
  const int64_t terms = p.summed.items, units = p.kept.items;
  int lanes = 1;
  while (lanes < terms && lanes < (p.fold ? kSumThreads : 8)) lanes *= 2;
  while (lanes < kSumThreads && kSumThreads / lanes / 2 >= units) lanes *= 2;
  p.columns = kSumThreads / lanes;
  const int64_t blocks = CeilDiv(units, p.columns);
  const int64_t wanted = CeilDiv(int64_t{limits.multiprocessors} * 4, blocks);
  const int64_t most = terms / (lanes * 8 * kSumBatch);  // a part is worth its sum
  p.parts = !p.data[kIn + 1] || wanted < most ? wanted : most > 0 ? most : 1;
  if (p.parts > 1 && p.data[kIn + 1]) {
    p.partial =
        static_cast<double*>(call->workspace(call, p.parts * p.count * int64_t{sizeof(double)}));
    if (!p.partial) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  }
  if (blocks * p.parts > 0x7fffffff)
    return call->fail(call, kAnyopDeclined, "there are more than 2^31 blocks of sums");
  const Launch launch{dim3(static_cast<unsigned>(blocks * p.parts)), dim3(kSumThreads)};
  if (int32_t status = launch.Run(call, SumOver<T, kPer, kIn, F>, p, f)) return status;
  if (!p.partial) return kAnyopOk;
  const SumsTo<1> to = {{p.data[kIn + 1]}, {p.dtype[kIn + 1]}};
  return RunAddParts<double>(call, p.partial, to, p.parts, p.count, false);
}

// sum: scale * f(in...), summed over the dimensions of in[0] that it lacks, or has size 1 in; its
// data may be NULL. written: of in[0]'s shape, or NULL.
template <size_t kInputs, typename F>
int32_t RunMapSum(AnyopCall* call, const F& f, const AnyopTensor* const (&in)[kInputs],
                  const AnyopTensor* written, double scale, const AnyopTensor* sum) {
  constexpr int kIn = static_cast<int>(kInputs);
  const AnyopTensor* operands[kIn + 1];
  for (int o = 0; o < kIn; ++o) operands[o] = in[o];
  operands[kIn] = written ? written : in[0];
  const SumDims<kIn> dims(operands, sum);
  SumOperands<kIn> p = {
      Walk<kIn + 2>(dims.kept_views, kIn + 1), Walk<kIn + 1>(dims.summed_views, 0), {}, {}};
  p.fold = dims.inner_summed;
  p.scale = scale;
  p.count = p.kept.items;
  bool uniform = true;
  const AnyopDtype dtype = AnyopDtypeOf(in[0]);
  for (int o = 0; o < kIn + 2; ++o) {
    const AnyopTensor* operand = o > kIn ? sum : operands[o];
    p.data[o] = static_cast<char*>(o == kIn && !written ? nullptr : operand->data);
    p.dtype[o] = AnyopDtypeOf(operand);
    uniform = uniform && (o > kIn || p.dtype[o] == dtype);
  }
  if (p.kept.items == 0) return kAnyopOk;
  if (uniform && dtype != kAnyopFloat64) {
    bool divided = false;
    const int32_t status = WithFloating(dtype, [&](auto zero) -> int32_t {
      using T = decltype(zero);
      if constexpr (sizeof(T) < 8) {
        divided = DivideSum(&p, kPerVector<T>);
        if (divided) return LaunchSum<T, kPerVector<T>>(call, p, f);
      }
      return kAnyopOk;
    });
    if (divided || status) return status;
  }
  return dtype == kAnyopFloat64 ? LaunchSum<double, 1>(call, p, f)
                                : LaunchSum<float, 1>(call, p, f);
}

// Whether `result` has fewer elements than `grad`, which it could be broadcast to.
inline bool IsSummed(const AnyopTensor* grad, const AnyopTensor* result) {
  for (int d = 0; d < grad->ndim; ++d) {
    const int own = d - (grad->ndim - result->ndim);
    if (grad->shape[d] != (own < 0 ? 1 : result->shape[own])) return true;
  }
  return false;
}

// out = f(in...); computed in float64 where in[0] is.
template <size_t kIn, typename F>
int32_t RunGradientMap(AnyopCall* call, const F& f, const AnyopTensor* const (&in)[kIn],
                       const AnyopTensor* out) {
  if (AnyopDtypeOf(in[0]) != kAnyopFloat64 || AnyopDtypeOf(out) == kAnyopFloat64)
    return RunFloatMap(call, f, in, out);
  const AnyopTensor* operands[kIn + 1];
  for (size_t o = 0; o < kIn; ++o) operands[o] = in[o];
  operands[kIn] = out;
  const MapOperands<static_cast<int>(kIn), 1> p(operands);
  return p.walk.items == 0 ? kAnyopOk : RunElements<double>(call, f, p);
}

}  // namespace
}  // namespace anyop::cuda
