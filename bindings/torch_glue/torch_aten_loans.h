// SPDX-License-Identifier: Apache-2.0
// The callers' memory that one call uses, and what of it outlives the call.
// Part of torch_aten_glue.cc.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "torch_aten_memory.h"

namespace anyop::glue {

// One argument's memory, from before the call to behind it.
struct Loan {
  const AnyopAtenMemory* memory;
  c10::intrusive_ptr<c10::TensorImpl> impl;
  c10::Storage storage;  // what impl began with
  int32_t argument;
  bool writes;

  c10::IntArrayRef Sizes() const {
    return {memory->tensor.shape, static_cast<size_t>(memory->tensor.ndim)};
  }
  bool HasItsShape() const { return impl->sizes() == Sizes(); }
  bool HasItsStorage() const {
    return storage.unsafeGetStorageImpl() == impl->unsafe_storage().unsafeGetStorageImpl();
  }
};

class Loans {
 public:
  at::Tensor Add(const AnyopAtenMemory* memory, bool writes, int32_t argument) {
    auto impl = TensorOver(memory->tensor);
    all_.push_back({memory, impl, impl->storage(), argument, writes});
    return at::Tensor(std::move(impl));
  }

  const Loan* begin() const { return all_.begin(); }
  const Loan* end() const { return all_.end(); }

  // Behind the call, when its results hold what they need.
  void Settle() {
    for (Loan& loan : all_) {
      loan.impl.reset();
      if (loan.storage.use_count() > 1) Keep(*loan.memory, *loan.storage.unsafeGetStorageImpl());
    }
  }

  // Behind a call that may leave nothing behind: the argument that something still refers to, which
  // finds no memory there from now on; -1: none.
  int32_t TakeBack() {
    int32_t kept = -1;
    for (Loan& loan : all_) {
      loan.impl.reset();
      if (loan.storage.use_count() == 1) continue;
      c10::StorageImpl& storage = *loan.storage.unsafeGetStorageImpl();
      storage.set_data_ptr_noswap({nullptr, storage.device()});
      storage.set_nbytes(0);
      kept = loan.argument;
    }
    return kept;
  }

 private:
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
};

}  // namespace anyop::glue
