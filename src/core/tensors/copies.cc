// SPDX-License-Identifier: Apache-2.0
// A copy reads in the order of its own elements; planes whose columns lie closer together than
// their rows go by square tiles, so that a line of the cache is read once.
#include "tensors/copies.h"

#include <algorithm>

#include "call/keep_in_place.h"
#include "router/choose/device_below.h"
#include "router/report/log.h"
#include "router/rules/settings.h"
#include "tensors/memory.h"

namespace anyop {
namespace {

constexpr int64_t kTile = 32;  // two tiles of 16-byte elements fill an L1 cache of 32 KiB

struct Dim {
  int64_t size, stride;  // in bytes
};

// The dimensions that matter, in their order: of more than one element, and joined where one goes
// on as the other does.
int Joined(const AnyopTensor& t, Dim* dims) {
  const int64_t item = t.dtype_bits / 8;
  int n = 0;
  for (int d = 0; d < t.ndim; ++d) {
    if (t.shape[d] == 1) continue;
    const Dim dim = {t.shape[d], t.strides[d] * item};
    if (n && dims[n - 1].stride == dim.stride * dim.size) {
      dims[n - 1] = {dims[n - 1].size * dim.size, dim.stride};
    } else {
      dims[n++] = dim;
    }
  }
  return n;
}

template <int kBytes>
void CopyPlane(const char* from, char* to, const Dim& rows, const Dim& columns) {
  const int64_t R = rows.size, C = columns.size;
  if (columns.stride == kBytes) {
    for (int64_t r = 0; r < R; ++r)
      std::memcpy(to + r * C * kBytes, from + r * rows.stride, static_cast<size_t>(C * kBytes));
    return;
  }
  const bool tiles = std::abs(rows.stride) < std::abs(columns.stride);
  const int64_t height = tiles ? kTile : 1, width = tiles ? kTile : C;
  for (int64_t top = 0; top < R; top += height) {
    for (int64_t left = 0; left < C; left += width) {
      const int64_t bottom = std::min(R, top + height), right = std::min(C, left + width);
      for (int64_t r = top; r < bottom; ++r) {
        for (int64_t c = left; c < right; ++c) {
          std::memcpy(to + (r * C + c) * kBytes, from + r * rows.stride + c * columns.stride,
                      kBytes);
        }
      }
    }
  }
}

using Plane = void (*)(const char*, char*, const Dim&, const Dim&);

Plane PlaneOf(int bits) {
  return bits == 8    ? CopyPlane<1>
         : bits == 16 ? CopyPlane<2>
         : bits == 32 ? CopyPlane<4>
         : bits == 64 ? CopyPlane<8>
                      : CopyPlane<16>;
}

}  // namespace

bool FitsLayout(const Param& p, const AnyopTensor& t) {
  const int last = t.ndim - 1;
  const bool rows = last < 0 || t.shape[last] == 1 || t.strides[last] == 1;
  return p.layout == kAnyopStrided || (p.layout == kAnyopRows && rows) ||
         (p.layout == kAnyopDense && IsDense(t));
}

std::string LayoutProblem(const Param& p, const AnyopTensor& t) {
  return "has sizes " + SizesText(t.ndim, t.shape) + " and strides " +
         SizesText(t.ndim, t.strides) + ", expected it " +
         (p.layout == kAnyopRows    ? "contiguous in its last dimension"
          : p.layout == kAnyopDense ? "without gaps, in any order of its dimensions"
                                    : "contiguous") +
         "; copy it first" +
         (p.Is(kAnyopCopied)
              ? ", by .contiguous() or the like: the operator copies it on the CPU alone"
              : "");
}

void CopyDense(const AnyopTensor& from, char* to) {
  Dim dims[kMaxRank + 2];
  dims[0] = dims[1] = {1, 0};
  const int64_t item = from.dtype_bits / 8;
  int n = Joined(from, dims + 2) + 2;
  if (n == 2) dims[n++] = {1, item};
  const Dim *const rows = &dims[n - 2], *const columns = &dims[n - 1];
  const int64_t plane_bytes = rows->size * columns->size * item;
  const Plane copy = PlaneOf(from.dtype_bits);
  const auto* at = static_cast<const char*>(from.data);
  int64_t index[kMaxRank + 2] = {};
  while (true) {
    copy(at, to, *rows, *columns);
    to += plane_bytes;
    int d = n - 3;
    for (; d >= 0; --d) {
      at += dims[d].stride;
      if (++index[d] < dims[d].size) break;
      at -= dims[d].stride * dims[d].size;
      index[d] = 0;
    }
    if (d < 0) return;
  }
}

int32_t Copies::Plan(uint64_t params) {
  for (; params; params &= params - 1) {
    const auto i = static_cast<uint32_t>(__builtin_ctzll(params));
    const Param& p = frame_->op->params[i];
    if (!p.IsList()) {
      if (int32_t status = PlanOne(i, &frame_->tensors[i])) return status;
      continue;
    }
    const auto& list = frame_->Field<AnyopTensorList>(p);
    for (int64_t k = 0; k < list.count; ++k) {
      auto* element = const_cast<AnyopTensor*>(&list.data[k]);
      if (element->ndim < 0) continue;  // None
      if (int32_t status = PlanOne(i, element)) return status;
    }
  }
  return kAnyopOk;
}

int32_t Copies::PlanOne(uint32_t i, AnyopTensor* t) {
  const Param& p = frame_->op->params[i];
  const int64_t item = t->dtype_bits / 8;
  Footprint f;
  MeasureFootprint(*t, item, &f);  // has been checked
  if (f.dense || FitsLayout(p, *t)) return kAnyopOk;
  auto* sizes = frame_->arena.Take<int64_t>(int64_t{3} * t->ndim);
  const auto bytes = sizeof *sizes * static_cast<size_t>(t->ndim);
  std::memcpy(sizes, t->shape, bytes);
  std::memcpy(sizes + t->ndim, t->strides, bytes);
  t->shape = sizes;
  t->strides = sizes + t->ndim;
  auto* copy = frame_->arena.Take<Copy>(1);
  *copy = {first_, *t, nullptr};
  t->strides = sizes + int64_t{2} * t->ndim;
  FillStrides(t->ndim, t->shape, t->strides);
  if (frame_->explanation) return kAnyopOk;
  const int64_t align = int64_t{1} << p.align_log2;  // scratch memory has 64
  int64_t room;
  void* memory = __builtin_add_overflow(f.numel * item, align > 64 ? align : 0, &room)
                     ? nullptr
                     : scratch_->Take(room);
  if (!memory) {
    return Fail(frame_, kAnyopOutOfMemory, "no memory for a copy of %s, %lld bytes", p.name,
                (long long)f.numel * item);
  }
  copy->to = static_cast<char*>(memory);
  if (align > 64)
    copy->to += -reinterpret_cast<uintptr_t>(memory) & static_cast<uintptr_t>(align - 1);
  t->data = copy->to;
  first_ = copy;
  Say(i, copy->from);
  return kAnyopOk;
}

void Copies::Say(uint32_t i, const AnyopTensor& t) const {
  const Operator& op = *frame_->op;
  const uint64_t bit = uint64_t{1} << i;
  if (op.copies_said.load(std::memory_order_relaxed) & bit) return;
  if (TheSettings().fallback == Fallback::kSilent || op.copies_said.fetch_or(bit) & bit) return;
  const Param& p = op.params[i];
  LogFallback(op.name + ": " + p.name + " has sizes " + SizesText(t.ndim, t.shape) +
              " and strides " + SizesText(t.ndim, t.strides) +
              ": it is copied; one that is contiguous" +
              (p.layout == kAnyopRows ? " in its last dimension" : "") + " is not");
}

int32_t Copies::Make(uint64_t params, const AnyopTensor& first, bool is_long) {
  if (int32_t status = Plan(params)) return status;
  if (frame_->explanation) return kAnyopOk;
  const bool waits = first.device_type != 1;
  const bool unlock = (is_long || waits) && frame_->before_kernel;
  if (unlock) {
    KeepInPlace(frame_, true);
    frame_->before_kernel(frame_);
  }
  void* stream;
  const int32_t status =
      waits ? EnterBelow(frame_, 1, first.device_id, &stream) : int32_t{kAnyopOk};
  if (status == kAnyopOk) Run();
  if (unlock) frame_->after_kernel(frame_);
  return status;
}

void Copies::Run() const {
  for (const Copy* copy = first_; copy; copy = copy->next) CopyDense(copy->from, copy->to);
}

}  // namespace anyop
