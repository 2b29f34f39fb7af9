// SPDX-License-Identifier: Apache-2.0
// Lends a tensor of a call to a function that wants a tensor object, and sees whether it was given
// back.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>

#include "anyop/kernel.h"
#include "library.h"
#include "operator/operator.h"

namespace anyop::ffi {

// A tensor object over memory of the call. The object and the call hold it; who lets go last frees
// it.
struct Loan {
  DLManagedTensorVersioned managed = {};
  int64_t sizes[2 * kMaxRank];
  std::atomic<int> holders{2};
  TVMFFIObjectHandle object = nullptr;

  explicit Loan(const AnyopTensor& tensor) {
    managed.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
    managed.manager_ctx = this;
    managed.deleter = [](DLManagedTensorVersioned* self) {
      static_cast<Loan*>(self->manager_ctx)->LetGo();
    };
    std::memcpy(&managed.dl_tensor, &tensor, sizeof tensor);
    std::copy_n(tensor.shape, tensor.ndim, sizes);
    std::copy_n(tensor.strides, tensor.ndim, sizes + kMaxRank);
    managed.dl_tensor.shape = sizes;
    managed.dl_tensor.strides = sizes + kMaxRank;
  }
  // Whether nobody holds it any more.
  bool LetGo() {
    const bool is_last = holders.fetch_sub(1) == 1;
    if (is_last) delete this;
    return is_last;
  }
};

}  // namespace anyop::ffi
