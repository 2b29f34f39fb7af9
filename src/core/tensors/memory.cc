// SPDX-License-Identifier: Apache-2.0
// Footprints of tensors and overlap between them.
#include "tensors/memory.h"

#include <algorithm>
#include <cstring>

namespace anyop {
namespace {

bool SamePlace(const AnyopTensor& a, const AnyopTensor& b) {
  return a.data == b.data && a.dtype_bits == b.dtype_bits && SameOrder(a, b);
}

bool Touch(const Span& a, const Span& b) {
  return (a.writes || b.writes) && a.begin < b.end && b.begin < a.end;
}

// Whether the schema lets what is written be exactly what is read.
bool MayBe(const Param& written, const Param& read) {
  if (!read.Is(kAnyopInplace) || written.IsList() != read.IsList()) return false;
  return read.IsList() ? written.Is(kAnyopMutated) && !read.Is(kAnyopMutated)
                       : written.Is(kAnyopOutput);
}

// A result may be exactly an input for which the schema says so; of lists, element by element.
bool Allowed(const Operator& op, const char* args, const Span& a, const Span& b) {
  const Param &p = op.params[a.param], &q = op.params[b.param];
  return (MayBe(p, q) || MayBe(q, p)) && SamePlace(*a.tensor, *b.tensor) &&
         ElementOf(op, args, a) == ElementOf(op, args, b);
}

}  // namespace

int64_t ElementOf(const Operator& op, const char* args, const Span& span) {
  const Param& p = op.params[span.param];
  if (!p.IsList()) return -1;
  return span.tensor - reinterpret_cast<const AnyopTensorList*>(args + p.offset)->data;
}

std::string OverlapText(const Operator& op, const char* args, const Span& written,
                        const Span& other) {
  std::string places;
  for (const Span* span : {&written, &other}) {
    const int64_t element = ElementOf(op, args, *span);
    if (element < 0) continue;
    places += (places.empty() ? " [element " : ", element ") + std::to_string(element) + " of " +
              op.params[span->param].name;
  }
  return std::string(op.params[written.param].name) + " overlaps " + op.params[other.param].name +
         " in memory" + places + (places.empty() ? "" : "]");
}

std::string OrderProblem(const Operator& op, const char* args, uint64_t given, uint32_t i,
                         int64_t element) {
  const auto tensor_of = [&](const Param& p) -> const AnyopTensor& {
    return reinterpret_cast<const AnyopTensorList*>(args + p.offset)->data[element];
  };
  const Param& p = op.params[i];
  const AnyopTensor& t = tensor_of(p);
  for (uint32_t j = 0; p.length >= 0 && j < i; ++j) {
    const Param& q = op.params[j];
    if (q.length != p.length || q.layout != kAnyopDense || !(given >> j & 1)) continue;
    const AnyopTensor& other = tensor_of(q);
    if (other.ndim < 0) continue;  // None
    if (SameOrder(t, other)) break;
    return "has sizes " + SizesText(t.ndim, t.shape) + " and strides " +
           SizesText(t.ndim, t.strides) + ", expected " + SizesText(other.ndim, other.shape) +
           " and " + SizesText(other.ndim, other.strides) + " as " + q.name;
  }
  return "";
}

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

bool Spans::FindOverlap(const Operator& op, const char* args, const LastOrder& last,
                        const Span** written, const Span** other) const {
  return count_ > 12 ? FindSorted(op, args, last, written, other)
                     : FindPair(op, args, written, other);
}

bool Spans::FindPair(const Operator& op, const char* args, const Span** written,
                     const Span** other) const {
  for (int i = 0; i < count_; ++i) {
    for (int j = 0; j < i; ++j) {
      const Span &a = data_[i], &b = data_[j];
      if (__builtin_expect(!Touch(a, b) || Allowed(op, args, a, b), 1)) continue;
      *written = a.writes ? &a : &b;
      *other = a.writes ? &b : &a;
      return true;
    }
  }
  return false;
}

// By place. Tensors mostly lie where they lay in the call before: its order is looked at first, and
// what moved is sorted by itself.
const Span** Spans::Sorted(const LastOrder& last_order) const {
  const auto is_before = [](const Span* a, const Span* b) {
    return a->begin != b->begin ? a->begin < b->begin : a->end < b->end;
  };
  const auto count = static_cast<uint32_t>(count_);
  const Span **order = arena_->Take<const Span*>(count_), **end = order + count;
  auto last = last_order.Take();
  const bool is_known = last && last->size() == count;
  for (uint32_t i = 0; i < count; ++i) order[i] = &data_[is_known ? (*last)[i] : i];
  if (!is_known || !std::is_sorted(order, end, is_before)) {
    const Span** moved = std::stable_partition(order, end, [](const Span* s) { return !s->moved; });
    if (!std::is_sorted(order, moved, is_before)) std::sort(order, moved, is_before);
    std::sort(moved, end, is_before);
    std::inplace_merge(order, moved, end, is_before);
    if (!last) last = std::make_unique<LastOrder::Numbers>();
    last->resize(count);
    for (uint32_t i = 0; i < count; ++i) (*last)[i] = static_cast<uint32_t>(order[i] - data_);
  }
  last_order.Keep(std::move(last));
  return order;
}

// For many tensors, in the order of their beginnings. Those of one place, among which the schema
// may allow pairs, are compared with each other; each is compared with the one of another place
// before it that ends last, of all when it is written, of the written ones otherwise.
bool Spans::FindSorted(const Operator& op, const char* args, const LastOrder& last_order,
                       const Span** written, const Span** other) const {
  const Span** order = Sorted(last_order);
  const Span *last = nullptr, *last_written = nullptr;
  const auto is_found = [&](const Span* a, const Span* b) {
    *written = a->writes ? a : b;
    *other = a->writes ? b : a;
    return true;
  };
  for (int i = 0, end; i < count_; i = end) {
    const Span& first = *order[i];
    for (end = i; end < count_ && order[end]->begin == first.begin && order[end]->end == first.end;)
      ++end;
    if (first.begin == first.end) continue;
    for (int k = i; k < end; ++k) {
      const Span& s = *order[k];
      const Span* before = s.writes ? last : last_written;
      if (before && s.begin < before->end) return is_found(&s, before);
      for (int m = i; s.writes && m < end; ++m) {  // one fails, or few are written
        if (m != k && !Allowed(op, args, s, *order[m])) return is_found(&s, order[m]);
      }
    }
    for (int k = i; k < end; ++k) {
      const Span* s = order[k];
      if (!last || s->end > last->end) last = s;
      if (s->writes && (!last_written || s->end > last_written->end)) last_written = s;
    }
  }
  return false;
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

bool IsDense(const AnyopTensor& t) {
  Footprint f;
  return MeasureStrided(t, 1, &f) == Extent::kFits && f.low == 0 && f.end == f.numel &&
         !OverlapsItself(t);
}

bool SameOrder(const AnyopTensor& a, const AnyopTensor& b) {
  if (a.ndim != b.ndim) return false;
  bool same = true, empty = false;
  for (int i = 0; i < a.ndim; ++i) {
    if (a.shape[i] != b.shape[i]) return false;
    empty |= a.shape[i] == 0;
    same &= a.shape[i] <= 1 || a.strides[i] == b.strides[i];
  }
  return same || empty;
}

std::string SizesText(int n, const int64_t* sizes) {
  std::string text = "(";
  for (int i = 0; i < n; ++i) text += (i ? ", " : "") + std::to_string(sizes[i]);
  return text + ")";
}

}  // namespace anyop
