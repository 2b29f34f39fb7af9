// SPDX-License-Identifier: Apache-2.0
// Walks tensors of any strides in one common order, and copies what lies scattered.
#ifndef ANYOP_CPU_WALK_H_
#define ANYOP_CPU_WALK_H_

#include "anyop/cpu.h"

namespace anyop::cpu {

constexpr int kMaxRank = 32;  // today's core passes no more

// A tensor seen in row-major order of the output: dimensions innermost first, merged where memory
// allows.
struct Walk {
  char* data;
  AnyopDtype dtype;
  int item_bytes;
  int rank;  // at least 1
  int64_t size[kMaxRank];
  int64_t stride_bytes[kMaxRank];

  bool IsScattered() const {
    const bool has_gaps = stride_bytes[0] != item_bytes && stride_bytes[0] != 0;
    return (has_gaps && size[0] > 1) || (rank > 1 && size[0] < 8);
  }
};

// order: dimensions of the tensor, innermost first.
__attribute__((noinline)) inline void InitWalk(const AnyopTensor& tensor, const int* order,
                                               int rank, Walk* walk) {
  walk->data = static_cast<char*>(tensor.data);
  walk->dtype = AnyopDtypeOf(&tensor);
  walk->item_bytes = tensor.dtype_bits / 8;
  walk->rank = 1;
  walk->size[0] = 1;
  walk->stride_bytes[0] = walk->item_bytes;
  int last = -1;
  for (int i = 0; i < rank; ++i) {
    const int64_t size = tensor.shape[order[i]];
    const int64_t stride = tensor.strides[order[i]] * walk->item_bytes;
    if (last >= 0 && stride == walk->stride_bytes[last] * walk->size[last]) {
      walk->size[last] *= size;
      continue;
    }
    walk->size[++last] = size;
    walk->stride_bytes[last] = stride;
    walk->rank = last + 1;
  }
}

// The walks of one output and N inputs of its shape (inputs that were broadcast have stride 0).
template <int N>
struct Plan {
  int64_t count = 1;  // -1: more dimensions than kMaxRank
  Walk out;
  Walk in[N];

  Plan(const AnyopTensor* output, const AnyopTensor* const (&inputs)[N]) {
    out.dtype = AnyopDtypeOf(output);
    if (output->ndim > kMaxRank) {
      count = -1;
      return;
    }
    int order[kMaxRank];
    int rank = 0;
    // Innermost first: the smallest stride of the output, and of equal ones the last dimension.
    for (int d = output->ndim - 1; d >= 0; --d) {
      count *= output->shape[d];
      if (output->shape[d] == 1) continue;
      int at = rank++;
      for (; at > 0 && Span(output, order[at - 1]) > Span(output, d); --at)
        order[at] = order[at - 1];
      order[at] = d;
    }
    InitWalk(*output, order, rank, &out);
    for (int k = 0; k < N; ++k) InitWalk(*inputs[k], order, rank, &in[k]);
  }

  bool HasOneType() const {
    for (const Walk& walk : in) {
      if (walk.dtype != out.dtype) return false;
    }
    return true;
  }

  // Whether some tensor is scattered: its elements have gaps, or lie together in short runs only.
  bool IsScattered() const {
    bool scattered = out.IsScattered();
    for (const Walk& walk : in) scattered = scattered || walk.IsScattered();
    return scattered;
  }

 private:
  static int64_t Span(const AnyopTensor* tensor, int d) {
    return tensor->strides[d] < 0 ? -tensor->strides[d] : tensor->strides[d];
  }
};

// n elements of a fixed width from one stride to another; a stride of 0 repeats.
template <typename Item>
inline void CopyItems(const char* from, int64_t from_stride, int64_t n, char* to,
                      int64_t to_stride) {
  for (int64_t i = 0; i < n; ++i) {
    Item item;
    __builtin_memcpy(&item, from + i * from_stride, sizeof(Item));
    __builtin_memcpy(to + i * to_stride, &item, sizeof(Item));
  }
}
inline void CopyRun(int item_bytes, const char* from, int64_t from_stride, int64_t n, char* to,
                    int64_t to_stride) {
  if (from_stride == item_bytes && to_stride == item_bytes) {
    __builtin_memcpy(to, from, n * item_bytes);
    return;
  }
  switch (item_bytes) {
    case 1:
      return CopyItems<uint8_t>(from, from_stride, n, to, to_stride);
    case 2:
      return CopyItems<uint16_t>(from, from_stride, n, to, to_stride);
    case 4:
      return CopyItems<uint32_t>(from, from_stride, n, to, to_stride);
    default:
      return CopyItems<uint64_t>(from, from_stride, n, to, to_stride);
  }
}

// A place in a walk.
class Cursor {
 public:
  __attribute__((noinline)) Cursor(const Walk& walk, int64_t begin) : walk_(walk), at_(walk.data) {
    for (int d = 0; d < walk.rank; ++d) {
      index_[d] = d + 1 < walk.rank ? begin % walk.size[d] : begin;
      begin /= walk.size[d];
      at_ += index_[d] * walk.stride_bytes[d];
    }
  }

  // How many of the next elements are contiguous, and where the next n are when they are that, else
  // nullptr.
  int64_t ContiguousRun() const {
    return walk_.stride_bytes[0] == walk_.item_bytes ? walk_.size[0] - index_[0] : 0;
  }
  char* Contiguous(int64_t n) const { return ContiguousRun() >= n ? at_ : nullptr; }

  // The address of the next n elements when they are all the same one, else nullptr.
  char* Repeated(int64_t n) const {
    return walk_.stride_bytes[0] == 0 && walk_.size[0] - index_[0] >= n ? at_ : nullptr;
  }
  // The next element, how far the one after it lies, and how many of the next n have that distance.
  char* at() const { return at_; }
  int64_t stride_bytes() const { return walk_.stride_bytes[0]; }
  int64_t Run(int64_t n) const {
    const int64_t left = walk_.size[0] - index_[0];
    return n < left ? n : left;
  }

  // Moves past `run` elements, which must not leave the innermost run.
  void Advance(int64_t run) {
    at_ += run * walk_.stride_bytes[0];
    index_[0] += run;
    for (int d = 0; index_[d] == walk_.size[d] && d + 1 < walk_.rank; ++d) {
      at_ += walk_.stride_bytes[d + 1] - walk_.size[d] * walk_.stride_bytes[d];
      index_[d] = 0;
      ++index_[d + 1];
    }
  }

  // Copy the next n elements to or from contiguous memory and move past them. Not inlined: loops
  // that only move bytes gain nothing from being compiled per instruction set and element type.
  __attribute__((noinline)) void Gather(int64_t n, char* to) {
    for (int64_t run; n > 0; n -= run, to += run * walk_.item_bytes) {
      run = Run(n);
      CopyRun(walk_.item_bytes, at_, walk_.stride_bytes[0], run, to, walk_.item_bytes);
      Advance(run);
    }
  }
  __attribute__((noinline)) void Scatter(int64_t n, const char* from) {
    for (int64_t run; n > 0; n -= run, from += run * walk_.item_bytes) {
      run = Run(n);
      CopyRun(walk_.item_bytes, from, walk_.item_bytes, run, at_, walk_.stride_bytes[0]);
      Advance(run);
    }
  }

 private:
  const Walk& walk_;
  char* at_;
  int64_t index_[kMaxRank];
};

}  // namespace anyop::cpu

#endif  // ANYOP_CPU_WALK_H_
