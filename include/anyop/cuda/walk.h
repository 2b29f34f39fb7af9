/* SPDX-License-Identifier: Apache-2.0 */
/* For CUDA kernels over elements: the places of operands of one shape, any strides. */
#ifndef ANYOP_CUDA_WALK_H_
#define ANYOP_CUDA_WALK_H_

#include "anyop/cuda.h"

namespace anyop::cuda {

// n / d for n and d below 2^31, by a product (Granlund & Montgomery 1994).
struct Divisor {
  uint32_t value = 1, multiplier = 0, shift = 0;

  Divisor() = default;
  explicit Divisor(int64_t d) : value(static_cast<uint32_t>(d)) {
    while ((uint64_t{1} << shift) < value) ++shift;
    multiplier =
        static_cast<uint32_t>(((uint64_t{1} << shift) - value) * (uint64_t{1} << 32) / value + 1);
  }
  __device__ uint32_t Divide(uint32_t n) const { return (__umulhi(n, multiplier) + n) >> shift; }
};

// A run of items over collapsed dimensions, the last one innermost.
template <int kOperands>
struct Walk {
  static constexpr int kMaxRank = 32;
  int64_t items = 1;
  int ndim = 0;
  bool small = false;  // items fit 31 bits: cheaper divisions
  int64_t size[kMaxRank];
  Divisor divisor[kMaxRank];
  int64_t step[kOperands][kMaxRank];  // in elements

  // Of the elements of all operands, which have one shape, stride 0 where they are repeated; in the
  // order of operand `lead`, so that its neighbours are walked together, or row by row (-1).
  Walk(const AnyopTensor* const (&operands)[kOperands], int lead) {
    const AnyopTensor& any = *operands[lead < 0 ? 0 : lead];
    for (int d = 0; d < any.ndim; ++d) {
      const int64_t length = any.shape[d];
      items *= length;
      if (length == 1) continue;
      int64_t steps[kOperands];
      for (int o = 0; o < kOperands; ++o) steps[o] = operands[o]->strides[d];
      Insert(length, steps, lead);
    }
    Join();
    for (int o = 0; ndim == 0 && o < kOperands; ++o) step[o][0] = 0;
    Close();
  }

  // Makes items pieces of `count` elements (16 bytes), side by side in each operand or one that is
  // repeated (of the first `inputs`); false when the innermost dimension does not allow it.
  // Operands from `asked` on lie in any way: an item's elements are apart as they were.
  bool Divide(int count, int inputs, char* const (&data)[kOperands], bool (&repeats)[kOperands],
              int asked = kOperands) {
    if (ndim == 0 || size[ndim - 1] % count) return false;
    const int last = ndim - 1;
    for (int o = 0; o < asked; ++o) {
      const int64_t inner = step[o][last];
      repeats[o] = inner == 0;
      if (inner != 1 && (inner != 0 || o >= inputs)) return false;
      if (inner == 0) continue;
      if (!IsAligned(data[o], 16)) return false;
      for (int d = 0; d < last; ++d) {
        if (step[o][d] % count) return false;
      }
    }
    for (int o = 0; o < kOperands; ++o) step[o][last] *= count;
    size[last] /= count;
    items /= count;
    Close();
    return true;
  }

  // The first `count` items of one dimension.
  void Cut(int64_t count) {
    items = size[0] = count;
    Close();
  }
  void Close() {
    small = items < INT64_C(0x7fffffff);
    for (int d = 0; small && items && d < ndim; ++d) divisor[d] = Divisor(size[d]);
  }

 private:
  void Insert(int64_t length, const int64_t* steps, int lead) {
    const auto reach = [](int64_t s) { return s < 0 ? -s : s; };
    int at = ndim++;
    for (; lead >= 0 && at > 0 && reach(step[lead][at - 1]) < reach(steps[lead]); --at) {
      size[at] = size[at - 1];
      for (int o = 0; o < kOperands; ++o) step[o][at] = step[o][at - 1];
    }
    size[at] = length;
    for (int o = 0; o < kOperands; ++o) step[o][at] = steps[o];
  }
  // Dimensions that lie like one in every operand become one.
  void Join() {
    int kept = 0;
    for (int d = 0; d < ndim; ++d) {
      bool joins = kept > 0;
      for (int o = 0; joins && o < kOperands; ++o)
        joins = step[o][kept - 1] == step[o][d] * size[d];
      if (joins) {
        size[kept - 1] *= size[d];
      } else {
        size[kept++] = size[d];
      }
      for (int o = 0; o < kOperands; ++o) step[o][kept - 1] = step[o][d];
    }
    ndim = kept;
  }
};

template <int kOperands>
struct Places {
  int64_t at[kOperands] = {};
};

// Where the item lies in each operand. Few tensors have five dimensions that cannot be joined: four
// turns at once, as the compiler would have them, are six tenths of a kernel and never run.
template <int kOperands>
__device__ Places<kOperands> PlacesOf(const Walk<kOperands>& walk, int64_t item) {
  Places<kOperands> places;
  const auto go = [&](int d, int64_t here) {
#pragma unroll
    for (int o = 0; o < kOperands; ++o) places.at[o] += here * walk.step[o][d];
  };
  if (walk.small) {
    auto rest = static_cast<uint32_t>(item);
#pragma unroll 1
    for (int d = walk.ndim - 1; d > 0; --d) {
      const uint32_t outer = walk.divisor[d].Divide(rest);
      go(d, rest - outer * walk.divisor[d].value);
      rest = outer;
    }
    go(0, rest);
  } else {
#pragma unroll 1
    for (int d = walk.ndim - 1; d > 0; --d) {
      const int64_t outer = item / walk.size[d];
      go(d, item - outer * walk.size[d]);
      item = outer;
    }
    go(0, item);
  }
  return places;
}

}  // namespace anyop::cuda

#endif  // ANYOP_CUDA_WALK_H_
