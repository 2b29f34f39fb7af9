// SPDX-License-Identifier: Apache-2.0
// Footprints of tensors and overlap between them.
#include "memory.h"

#include <algorithm>
#include <cstring>

namespace anyop {
namespace {

bool SamePlace(const AnyopTensor& a, const AnyopTensor& b) {
  if (a.data != b.data || a.ndim != b.ndim || a.dtype_bits != b.dtype_bits) return false;
  for (int i = 0; i < a.ndim; ++i) {
    if (a.shape[i] != b.shape[i] || (a.shape[i] > 1 && a.strides[i] != b.strides[i])) return false;
  }
  return true;
}

bool Touch(const Span& a, const Span& b) {
  return (a.writes || b.writes) && a.begin < b.end && b.begin < a.end;
}

// A result may be exactly an input for which the schema says so.
bool Allowed(const Operator& op, const Span& a, const Span& b) {
  const Param &p = op.params[a.param], &q = op.params[b.param];
  const bool pair =
      (p.Is(kAnyopOutput) && q.Is(kAnyopInplace)) || (q.Is(kAnyopOutput) && p.Is(kAnyopInplace));
  return pair && SamePlace(*a.tensor, *b.tensor);
}

}  // namespace

Extent MeasureStrided(const AnyopTensor& t, int64_t item_bytes, Footprint* f) {
  int64_t numel = 1, low = 0, end = 1;
  bool dense = true, overflow = false, empty = false;
  for (int i = t.ndim; i--;) {
    const int64_t size = t.shape[i], stride = t.strides[i];
    if (size <= 1) {
      if (size < 0) return Extent::kNegativeSize;
      empty |= size == 0;
      continue;
    }
    dense &= stride == numel;
    int64_t reach;
    overflow |= __builtin_mul_overflow(size - 1, stride, &reach);
    overflow |= stride < 0 ? __builtin_add_overflow(low, reach, &low)
                           : __builtin_add_overflow(end, reach, &end);
    overflow |= __builtin_mul_overflow(numel, size, &numel);
  }
  if (empty) {
    *f = {0, 0, 0, true};
    return Extent::kFits;
  }
  int64_t bytes;
  overflow |= __builtin_mul_overflow(numel, item_bytes, &bytes);
  overflow |= __builtin_mul_overflow(end, item_bytes, &bytes) ||
              __builtin_mul_overflow(low, item_bytes, &bytes);
  *f = {numel, low, end, dense};
  return overflow ? Extent::kOverflow : Extent::kFits;
}

void Spans::Grow() {
  Span* more = arena_->Take<Span>(int64_t{capacity_} * 4);
  std::memcpy(more, data_, sizeof(Span) * static_cast<size_t>(count_));
  data_ = more;
  capacity_ *= 4;
}

bool Spans::FindOverlap(const Operator& op, const Span** written, const Span** other) const {
  return (count_ > 12 && SortedAreApart()) ? false : FindPair(op, written, other);
}

bool Spans::FindPair(const Operator& op, const Span** written, const Span** other) const {
  for (int i = 0; i < count_; ++i) {
    for (int j = 0; j < i; ++j) {
      const Span &a = data_[i], &b = data_[j];
      if (__builtin_expect(!Touch(a, b) || Allowed(op, a, b), 1)) continue;
      *written = a.writes ? &a : &b;
      *other = a.writes ? &b : &a;
      return true;
    }
  }
  return false;
}

// For many tensors: in the order of their beginnings each is compared with the furthest end before
// it, of all tensors when it is written, of the written ones otherwise.
bool Spans::SortedAreApart() const {
  const Span** order = arena_->Take<const Span*>(count_);
  for (int i = 0; i < count_; ++i) order[i] = &data_[i];
  std::sort(order, order + count_,
            [](const Span* a, const Span* b) { return a->begin < b->begin; });
  uintptr_t end = 0, written_end = 0;
  for (int i = 0; i < count_; ++i) {
    const Span& s = *order[i];
    if (s.begin < (s.writes ? end : written_end)) return false;
    end = std::max(end, s.end);
    if (s.writes) written_end = std::max(written_end, s.end);
  }
  return true;
}

void FillStrides(int ndim, const int64_t* shape, int64_t* strides) {
  int64_t step = 1;
  for (int i = ndim; i--;) {
    strides[i] = step;
    if (__builtin_mul_overflow(step, shape[i], &step))
      step = 0;  // such a shape is refused elsewhere
  }
}

bool OverlapsItself(const AnyopTensor& t) {
  struct Dim {
    int64_t size, stride;
  };
  Dim dims[kMaxRank];
  int n = 0;
  for (int i = 0; i < t.ndim; ++i) {
    if (t.shape[i] == 0) return false;
    if (t.shape[i] > 1) dims[n++] = {t.shape[i], t.strides[i] < 0 ? -t.strides[i] : t.strides[i]};
  }
  std::sort(dims, dims + n, [](const Dim& a, const Dim& b) { return a.stride < b.stride; });
  int64_t reach = 0;
  for (int i = 0; i < n; ++i) {
    if (dims[i].stride <= reach) return true;
    reach += (dims[i].size - 1) * dims[i].stride;
  }
  return false;
}

std::string SizesText(int n, const int64_t* sizes) {
  std::string text = "(";
  for (int i = 0; i < n; ++i) text += (i ? ", " : "") + std::to_string(sizes[i]);
  return text + ")";
}

}  // namespace anyop
