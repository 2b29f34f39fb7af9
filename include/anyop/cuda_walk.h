/* SPDX-License-Identifier: Apache-2.0 */
/* For CUDA kernels over elements: the places of two inputs and a result of one shape, any strides.
 */
#ifndef ANYOP_CUDA_WALK_H_
#define ANYOP_CUDA_WALK_H_

#include "anyop/cuda.h"

namespace anyop::cuda {

// A run of items over collapsed dimensions, the last one innermost. Operands: x, y, out.
struct Walk {
  static constexpr int kMaxRank = 32, kOperands = 3;
  int64_t items = 1;
  int ndim = 0;
  bool small = false;  // items fit 31 bits: cheaper divisions
  int64_t size[kMaxRank];
  int64_t step[kOperands][kMaxRank];  // in elements

  // Of the elements of out; x and y have its shape, stride 0 where they are repeated.
  Walk(const AnyopTensor* x, const AnyopTensor* y, const AnyopTensor* out) {
    const AnyopTensor* operands[kOperands] = {x, y, out};
    for (int d = 0; d < out->ndim; ++d) {
      items *= out->shape[d];
      if (out->shape[d] == 1) continue;
      int64_t steps[kOperands];
      for (int o = 0; o < kOperands; ++o) steps[o] = operands[o]->strides[d];
      Insert(out->shape[d], steps);
    }
    Join();
    for (int o = 0; ndim == 0 && o < kOperands; ++o) step[o][0] = 0;
    small = items < INT64_C(0x7fffffff);
  }

  // Makes items pieces of `count` elements (16 bytes), side by side in each operand or one that is
  // repeated; false when the innermost dimension does not allow it. repeats: of x and y.
  bool Divide(int count, const void* const* data, bool* repeats) {
    if (ndim == 0 || size[ndim - 1] % count) return false;
    const int last = ndim - 1;
    for (int o = 0; o < kOperands; ++o) {
      const int64_t inner = step[o][last];
      if (inner != 1 && (inner != 0 || o == 2)) return false;
      if (inner == 0) continue;
      if (!IsAligned(static_cast<const char*>(data[o]), 16)) return false;
      for (int d = 0; d < last; ++d) {
        if (step[o][d] % count) return false;
      }
    }
    for (int o = 0; o < kOperands; ++o) {
      if (o < 2) repeats[o] = step[o][last] == 0;
      step[o][last] *= count;
    }
    size[last] /= count;
    items /= count;
    return true;
  }

 private:
  // Dimensions in the order of out's strides, so that neighbours in it are walked together.
  void Insert(int64_t length, const int64_t* steps) {
    const auto reach = [](int64_t s) { return s < 0 ? -s : s; };
    int at = ndim++;
    for (; at > 0 && reach(step[2][at - 1]) < reach(steps[2]); --at) {
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

struct Places {
  int64_t x = 0, y = 0, out = 0;
};

template <typename Index>
__device__ Places PlacesAt(const Walk& walk, Index item) {
  Places at;
  for (int d = walk.ndim - 1; d > 0; --d) {
    const auto size = static_cast<Index>(walk.size[d]);
    const Index rest = item / size;
    const auto here = static_cast<int64_t>(item - rest * size);
    at.x += here * walk.step[0][d];
    at.y += here * walk.step[1][d];
    at.out += here * walk.step[2][d];
    item = rest;
  }
  const auto here = static_cast<int64_t>(item);
  at.x += here * walk.step[0][0];
  at.y += here * walk.step[1][0];
  at.out += here * walk.step[2][0];
  return at;
}
__device__ inline Places PlacesOf(const Walk& walk, int64_t item) {
  return walk.small ? PlacesAt(walk, static_cast<uint32_t>(item))
                    : PlacesAt(walk, static_cast<uint64_t>(item));
}

}  // namespace anyop::cuda

#endif  // ANYOP_CUDA_WALK_H_
