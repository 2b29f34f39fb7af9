// SPDX-License-Identifier: Apache-2.0
// What a call may say of memory: layout, alignment, extent of one tensor, and overlap between
// tensors.
#pragma once

#include <string>

#include "call/arena.h"
#include "operator/operator.h"

namespace anyop {

// The bytes one tensor touches, and whether the call writes them.
struct Span {
  uintptr_t begin;
  uintptr_t end;
  const AnyopTensor* tensor;
  uint16_t param;
  bool writes;
  bool moved = true;  // of a handle's call: false where it lies as in the call before
};

class Spans {
 public:
  explicit Spans(Arena* arena) : arena_(arena) {}

  void Add(const Span& span) {
    if (count_ == capacity_) Grow();
    data_[count_++] = span;
  }
  // A pair of which one is written and the other touched, unless an input that the schema lets a
  // result be has exactly its place. Returns false when there is none. args: of the call, with its
  // lists. last: the order of a call like it.
  bool FindOverlap(const Operator& op, const char* args, const LastOrder& last,
                   const Span** written, const Span** other) const;
  const Span* begin() const { return data_; }
  const Span* end() const { return data_ + count_; }

 private:
  void Grow();
  bool FindPair(const Operator& op, const char* args, const Span** written,
                const Span** other) const;
  const Span** Sorted(const LastOrder& last_order) const;
  bool FindSorted(const Operator& op, const char* args, const LastOrder& last, const Span** written,
                  const Span** other) const;

  Arena* arena_;
  Span inline_[12];
  Span* data_ = inline_;
  int count_ = 0;
  int capacity_ = 12;
};

// The number of a tensor in its list; -1 of one that is in none.
int64_t ElementOf(const Operator& op, const char* args, const Span& span);

// "out overlaps x in memory [element 3 of out, element 4 of x]"
std::string OverlapText(const Operator& op, const char* args, const Span& written,
                        const Span& other);

// What is wrong with the order of dimensions of an element of parameter i, a dense list: those of
// lists of its length, before it and given, lie in one order. Empty: nothing.
std::string OrderProblem(const Operator& op, const char* args, uint64_t given, uint32_t i,
                         int64_t element);

// Row-major strides for shape, written to strides[ndim].
void FillStrides(int ndim, const int64_t* shape, int64_t* strides);

enum class Extent { kFits, kNegativeSize, kOverflow };
// Elements, bytes from the first to behind the last element touched (relative to data), density.
struct Footprint {
  int64_t numel;
  int64_t low;  // in elements, <= 0
  int64_t end;  // in elements, behind the last one
  bool dense;   // row-major without gaps
};
// Of any strides.
Extent MeasureStrided(const AnyopTensor& t, int64_t item_bytes, Footprint* f);

// Inline, for it is part of every call; what is row-major and has elements needs no more than this.
inline Extent MeasureFootprint(const AnyopTensor& t, int64_t item_bytes, Footprint* f) {
  int64_t numel = 1, bytes;
  for (int i = t.ndim; i--;) {
    const int64_t size = t.shape[i];
    if (size == 1) continue;
    if (size < 1 || t.strides[i] != numel || __builtin_mul_overflow(numel, size, &numel))
      return MeasureStrided(t, item_bytes, f);
  }
  *f = {numel, 0, numel, true};
  return __builtin_mul_overflow(numel, item_bytes, &bytes) ? Extent::kOverflow : Extent::kFits;
}

// Whether two elements of a written tensor may share an address. Exact for dense layouts, else
// cautious.
bool OverlapsItself(const AnyopTensor& tensor);

// Whether the elements of a tensor fill their extent, in any order of dimensions.
bool IsDense(const AnyopTensor& tensor);

// Whether two tensors have the same sizes and strides; of what is empty, the same sizes.
bool SameOrder(const AnyopTensor& a, const AnyopTensor& b);

// "(2, 3)"
std::string SizesText(int n, const int64_t* sizes);

}  // namespace anyop
