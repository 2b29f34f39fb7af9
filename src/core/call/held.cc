// SPDX-License-Identifier: Apache-2.0
// Handles of calls over lists, and their C API.
#include "call/held.h"

#include <algorithm>
#include <new>
#include <utility>

#include "anyop/held.h"
#include "api/c_error.h"

namespace anyop {

Held::Held(const Operator* op) : op(op) {
  for (const Param& p : op->params) {
    if (p.IsTensor() && p.IsList()) is_useful &= !p.Is(kAnyopCopied) && !p.shape.broadcast;
  }
}

void Held::Clear() {
  tensors.clear(), sizes.clear();
  touched_bytes = 0;
  checks_overlap = writes_nothing = false;
}

void Held::Add(const AnyopTensor& tensor, bool writes) {
  tensors.push_back({tensor, 0, 0, false});
  if (tensor.ndim < 0) return;  // None
  const int64_t item = tensor.dtype_bits / 8;
  Footprint f;
  MeasureFootprint(tensor, item, &f);
  tensors.back().begin = f.low * item, tensors.back().end = f.end * item;
  touched_bytes += static_cast<uint64_t>(f.numel * item);
  if (writes) (f.numel ? checks_overlap : writes_nothing) = true;
  sizes.insert(sizes.end(), tensor.shape, tensor.shape + tensor.ndim);
  sizes.insert(sizes.end(), tensor.strides, tensor.strides + tensor.ndim);
}

void Held::Finish() {
  int64_t* at = sizes.data();
  for (HeldTensor& kept : tensors) {
    if (kept.tensor.ndim <= 0) continue;
    kept.tensor.shape = at;
    kept.tensor.strides = at + kept.tensor.ndim;
    at += 2 * kept.tensor.ndim;
  }
}

namespace {

template <typename T>
void Append(std::string* text, const T& value) {
  text->append(reinterpret_cast<const char*>(&value), sizeof value);
}

bool SameButAddress(const AnyopTensor& now, const AnyopTensor& kept) {
  if (now.ndim != kept.ndim) return false;
  if (now.device_type != kept.device_type || now.device_id != kept.device_id ||
      now.dtype_code != kept.dtype_code || now.dtype_bits != kept.dtype_bits ||
      now.dtype_lanes != kept.dtype_lanes || now.byte_offset || (now.ndim && !now.shape))
    return false;
  for (int d = 0; d < now.ndim; ++d) {
    if (now.shape[d] != kept.shape[d] || now.strides[d] != kept.strides[d]) return false;
  }
  return true;
}

bool Writes(const Param& p) { return p.flags & (kAnyopOutput | kAnyopMutated); }

}  // namespace

template <typename Visit>
void HeldLists::EachList(const Visit& visit) const {
  for (uint32_t i = 0; i < op_.num_inputs; ++i) {
    const Param& p = op_.params[i];
    if (p.IsTensor() && p.IsList() && frame_->given >> i & 1)
      visit(i, p, frame_->Field<AnyopTensorList>(p));
  }
}

void HeldLists::Bind(Sizes* sizes, uint8_t* dtypes, const AnyopTensor** first) const {
  int64_t longest = 0;
  sizes->ForgetElement();
  EachList([&](uint32_t, const Param& p, const AnyopTensorList& list) {
    if (p.length >= 0) sizes->MatchSymbol(p.length, list.count);
    longest = std::max(longest, list.count);
  });
  EachList([&](uint32_t i, const Param& p, const AnyopTensorList& list) {
    int64_t k = list.count - 1;
    while (k >= 0 && list.data[k].ndim < 0) --k;  // None
    if (k < 0) return;
    dtypes[i] = static_cast<uint8_t>(AnyopDtypeOf(&list.data[k]));
    if (k == longest - 1) sizes->Match(p.shape, list.data[k].ndim, list.data[k].shape);
  });
  if (!*first) *first = First();
}

// Numbers of type float are in no rule for tensors.
std::string HeldLists::Rest() const {
  std::string text;
  Append(&text, frame_->given);
  for (uint32_t i = 0; i < op_.num_inputs; ++i) {
    const Param& p = op_.params[i];
    if (p.IsTensor()) {
      if (!(frame_->given >> i & 1)) continue;
      if (p.IsList()) {
        Append(&text, frame_->Field<AnyopTensorList>(p).count);
        continue;
      }
      const AnyopTensor& t = frame_->tensors[i];
      Append(&text, t.device_type), Append(&text, t.device_id), Append(&text, t.dtype_code);
      Append(&text, t.dtype_bits), Append(&text, t.ndim);
      text.append(reinterpret_cast<const char*>(t.shape),
                  sizeof *t.shape * static_cast<size_t>(t.ndim));
    } else if (p.kind == kAnyopStr && p.IsList()) {
      const auto& list = frame_->Field<AnyopStringList>(p);
      Append(&text, list.count);
      for (int64_t k = 0; k < list.count; ++k) {
        Append(&text, list.data[k].count);
        text.append(list.data[k].data, static_cast<size_t>(list.data[k].count));
      }
    } else if (p.kind == kAnyopStr) {
      const auto& string = frame_->Field<AnyopString>(p);
      Append(&text, string.count);
      if (string.data) text.append(string.data, static_cast<size_t>(string.count));
    } else if (p.kind != kAnyopFloat && p.IsList()) {
      const auto& list = frame_->Field<AnyopIntList>(p);
      Append(&text, list.count);
      if (list.data)
        text.append(reinterpret_cast<const char*>(list.data),
                    sizeof(int64_t) * static_cast<size_t>(list.count));
    } else if (p.kind != kAnyopFloat) {
      Append(&text, frame_->Field<int64_t>(p));
      if (p.Is(kAnyopOptional)) Append(&text, frame_->Field<AnyopOptionalInt>(p).has);
    }
  }
  return text;
}

bool HeldLists::FitTensor(const Param& p, AnyopTensor* t, HeldTensor* kept) const {
  if (!t->strides && t->ndim > 0 && t->ndim <= kMaxRank && t->shape) {
    t->strides = frame_->arena.Take<int64_t>(t->ndim);
    FillStrides(t->ndim, t->shape, t->strides);
  }
  if (!SameButAddress(*t, kept->tensor)) return false;
  kept->moved = t->data != kept->tensor.data;
  if (!kept->moved) return true;
  kept->tensor.data = t->data;
  if (kept->begin == kept->end) return true;  // of no elements, wherever it lies
  held_->has_moved = true;
  const auto at = reinterpret_cast<uintptr_t>(t->data);
  const int item = t->dtype_bits / 8;
  const auto alignment =
      p.align_log2 ? uintptr_t{1} << p.align_log2 : static_cast<uintptr_t>(item > 8 ? 8 : item);
  const uintptr_t begin = at + static_cast<uintptr_t>(kept->begin),
                  end = at + static_cast<uintptr_t>(kept->end);
  return at && !(at & (alignment - 1)) && static_cast<intptr_t>(begin | end) >= 0;
}

bool HeldLists::Fit() {
  const bool is_known = held_->is_known;
  held_->is_known = held_->has_moved = false;
  if (!held_->is_useful) return false;
  std::string rest = Rest();
  if (!is_known || held_->rest != rest) {
    held_->rest = std::move(rest);
    return false;
  }
  HeldTensor* kept = held_->tensors.data();
  bool fits = true;
  EachList([&](uint32_t, const Param& p, const AnyopTensorList& list) {
    for (int64_t k = 0; fits && k < list.count; ++k)
      fits = FitTensor(p, const_cast<AnyopTensor*>(&list.data[k]), kept++);
  });
  return fits;
}

const AnyopTensor* HeldLists::First() const {
  const AnyopTensor* first = nullptr;
  int64_t at = INT64_MAX;
  EachList([&](uint32_t, const Param&, const AnyopTensorList& list) {
    int64_t k = 0;
    while (k < list.count && list.data[k].ndim < 0) ++k;
    if (k < list.count && k < at) first = &list.data[at = k];
  });
  return first;
}

bool HeldLists::AreApartFrom(const Spans& others) const {
  const auto same = [](const Span& a, const Span& b) {
    return a.begin == b.begin && a.end == b.end && a.param == b.param;
  };
  const std::vector<Span>& before = held_->others;
  const auto count = static_cast<size_t>(others.end() - others.begin());
  if (count == before.size() && std::equal(others.begin(), others.end(), before.begin(), same))
    return true;
  bool apart = true;
  const HeldTensor* kept = held_->tensors.data();
  EachList([&](uint32_t, const Param& p, const AnyopTensorList& list) {
    for (int64_t k = 0; apart && k < list.count; ++k, ++kept) {
      const auto at = reinterpret_cast<uintptr_t>(kept->tensor.data);
      const uintptr_t begin = at + static_cast<uintptr_t>(kept->begin),
                      end = at + static_cast<uintptr_t>(kept->end);
      for (const Span& s : others) {
        const bool touch = s.begin < end && begin < s.end && begin < end;
        apart &= !touch || !(s.writes || Writes(p));
      }
    }
  });
  for (const Span& a : others) {
    for (const Span& b : others) {
      apart &= &a == &b || !(a.writes || b.writes) || a.end <= b.begin || b.end <= a.begin;
    }
  }
  return apart;
}

void HeldLists::AddTo(Spans* spans) const {
  const HeldTensor* kept = held_->tensors.data();
  EachList([&](uint32_t i, const Param& p, const AnyopTensorList& list) {
    for (int64_t k = 0; k < list.count; ++k, ++kept) {
      if (kept->begin == kept->end) continue;
      const auto at = reinterpret_cast<uintptr_t>(kept->tensor.data);
      spans->Add({at + static_cast<uintptr_t>(kept->begin), at + static_cast<uintptr_t>(kept->end),
                  &list.data[k], static_cast<uint16_t>(i), Writes(p), kept->moved});
    }
  });
}

void HeldLists::KeepAll() const {
  if (!held_->is_useful) return;
  held_->Clear();
  EachList([&](uint32_t, const Param& p, const AnyopTensorList& list) {
    for (int64_t k = 0; k < list.count; ++k) held_->Add(list.data[k], Writes(p));
  });
  held_->Finish();
}

int32_t HeldLists::Keep(const Spans& spans) const {
  held_->others.clear();
  for (const Span& s : spans) {
    if (!op_.params[s.param].IsList()) held_->others.push_back(s);
  }
  held_->is_known = held_->is_useful;
  return kAnyopOk;
}

}  // namespace anyop

extern "C" {

int32_t AnyopNewHeld(const AnyopOperator* op, AnyopHeld** held) {
  if (!op || !held)
    return anyop::SetError(kAnyopValueError,
                           "AnyopNewHeld: expected an operator and a place for the handle");
  auto* made = new (std::nothrow) anyop::Held(reinterpret_cast<const anyop::Operator*>(op));
  if (!made) return anyop::SetError(kAnyopOutOfMemory, "out of memory");
  *held = reinterpret_cast<AnyopHeld*>(made);
  return kAnyopOk;
}

void AnyopDeleteHeld(AnyopHeld* held) { delete reinterpret_cast<anyop::Held*>(held); }

}  // extern "C"
