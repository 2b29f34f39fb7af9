// SPDX-License-Identifier: Apache-2.0
// The callers' memory that one call uses: which of it overlaps, and what of it outlives the call.
// Part of torch_aten_glue.cc.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <algorithm>

#include "torch_aten_memory.h"

namespace anyop::glue {

// One argument's memory, from before the call to behind it.
struct Loan {
  const AnyopAtenMemory* memory;
  c10::intrusive_ptr<c10::TensorImpl> impl;
  c10::Storage storage = {};  // what impl began with, where the operator may give it another
  int32_t argument;
  int32_t leader;  // the loan whose storage this one shares: itself, if none
  bool writes;

  c10::IntArrayRef Sizes() const {
    return {memory->tensor.shape, static_cast<size_t>(memory->tensor.ndim)};
  }
  bool HasItsShape() const { return impl->sizes() == Sizes(); }
};

class Loans {
 public:
  at::Tensor Add(const AnyopAtenMemory* memory, bool writes, int32_t argument) {
    const auto number = static_cast<int32_t>(all_.size());
    Loan& loan =
        all_.emplace_back(Loan{memory, TensorOver(memory->tensor), {}, argument, number, writes});
    if (writes) loan.storage = loan.impl->storage();
    written_ |= writes;
    return at::Tensor(loan.impl);
  }

  const Loan* begin() const { return all_.begin(); }
  const Loan* end() const { return all_.end(); }

  bool HasItsStorage(const Loan& loan) const {
    const c10::Storage& began = all_[static_cast<size_t>(loan.leader)].storage;
    return began.unsafeGetStorageImpl() == loan.impl->unsafe_storage().unsafeGetStorageImpl();
  }

  // Memory that is written and overlaps other memory becomes one storage with it, by which torch
  // finds that arguments overlap, and copies or refuses as it does for tensors of its own.
  void Join() {
    if (!written_ || all_.size() < 2) return;
    c10::SmallVector<Span, 8> spans;
    for (const Loan& loan : all_)
      if (const auto bytes = static_cast<int64_t>(loan.impl->unsafe_storage().nbytes()))
        if (const auto* data = static_cast<const char*>(loan.impl->unsafe_storage().data()))
          spans.push_back({data, data + bytes, static_cast<int32_t>(&loan - all_.begin())});
    std::sort(spans.begin(), spans.end(),
              [](const Span& a, const Span& b) { return a.from < b.from; });
    for (size_t first = 0, i = 0; i < spans.size(); first = i) {
      const char* end = spans[first].to;
      bool writes = false;
      for (; i < spans.size() && spans[i].from < end; ++i) {
        end = std::max(end, spans[i].to);
        writes |= all_[static_cast<size_t>(spans[i].loan)].writes;
      }
      if (writes && i - first > 1) Unite({&spans[first], i - first}, end);
    }
  }

  // Behind the call, when its results hold what they need.
  void Settle() {
    for (Loan& loan : all_) {
      if (!loan.storage && loan.leader == &loan - all_.begin()) loan.storage = loan.impl->storage();
      loan.impl.reset();
    }
    for (Loan& loan : all_) {
      c10::Storage& storage = all_[static_cast<size_t>(loan.leader)].storage;
      if (storage.use_count() > 1) Keep(*loan.memory, *storage.unsafeGetStorageImpl());
    }
  }

 private:
  struct Span {
    const char *from, *to;
    int32_t loan;
  };

  void Unite(c10::ArrayRef<Span> spans, const char* end) {
    const char* begin = spans[0].from;
    const Loan& first = all_[static_cast<size_t>(spans[0].loan)];
    const c10::Storage joint(
        NewStorage(end - begin, const_cast<char*>(begin), first.impl->device()));
    for (const Span& span : spans) {
      Loan& loan = all_[static_cast<size_t>(span.loan)];
      const auto itemsize = static_cast<int64_t>(loan.impl->itemsize());
      if ((span.from - begin) % itemsize)
        throw Refusal{kAnyopValueError,
                      "overlaps another argument's memory, in which its elements do not begin",
                      loan.argument};
      loan.impl->set_storage_keep_dtype(joint);
      loan.impl->set_storage_offset((span.from - begin) / itemsize);
      loan.leader = spans[0].loan;
      loan.storage = loan.leader == span.loan ? joint : c10::Storage();
    }
  }

  // Keeps a caller's memory for what the call has left behind that refers to it.
  static void Keep(const AnyopAtenMemory& memory, c10::StorageImpl& storage) {
    const bool read_only = memory.flags & kAnyopAtenReadOnly;
    if (!memory.retain && !read_only) return;
    c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
    auto* before =
        data.get_deleter() == ReleaseEscape ? static_cast<Escape*>(data.get_context()) : nullptr;
    auto* escape =
        new Escape{memory.owner, memory.retain ? memory.release : nullptr, read_only, before};
    if (memory.retain) memory.retain(memory.owner);
    void* const address = data.get();
    const c10::Device device = data.device();
    if (before) data.release_context();  // it goes on in the chain
    storage.set_data_ptr_noswap({address, escape, ReleaseEscape, device});
  }

  c10::SmallVector<Loan, 4> all_;
  bool written_ = false;
};

}  // namespace anyop::glue
