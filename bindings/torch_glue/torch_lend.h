// SPDX-License-Identifier: Apache-2.0
// Memory of a call as tensors for a kernel that is written in Python with torch, and the state of
// the thread while it runs. Part of torch_glue.cc.
#pragma once

#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <memory>
#include <optional>

#include "torch_aten_memory.h"
#include "torch_stream_state.h"

namespace anyop::glue {

// As State of anyop.backend.torch_calls.
struct Entered {
  Entered() { at::impl::PythonTorchFunctionTLS::set_disabled_state(at::impl::ALL_DISABLED); }
  ~Entered() { at::impl::PythonTorchFunctionTLS::set_disabled_state(functions); }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;

  const c10::impl::ForceDispatchKeyGuard keys{
      c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset};
  const at::impl::TorchFunctionDisabledState functions =
      at::impl::PythonTorchFunctionTLS::get_disabled_state();
  std::optional<StreamState> stream;
};

inline void* Enter(int32_t device_type, int32_t device_id, void* stream) {
  try {
    auto entered = std::make_unique<Entered>();
    if (device_type == 2) entered->stream.emplace(device_id, stream);
    return entered.release();
  } catch (...) {
    return nullptr;
  }
}

inline void Leave(void* entered) { delete static_cast<Entered*>(entered); }

inline void* Lend(const AnyopTensor* tensor, void** impl) {
  try {
    auto made = TensorOver(*tensor);
    c10::Storage storage = made->storage();
    *impl = made.release();
    return storage.unsafeReleaseStorageImpl();
  } catch (...) {
    return nullptr;
  }
}

inline int32_t IsKept(void* lent) {
  return c10::raw::intrusive_ptr::use_count(static_cast<c10::StorageImpl*>(lent)) > 1;
}

inline void TakeBack(void* lent) {
  const auto storage =
      c10::intrusive_ptr<c10::StorageImpl>::reclaim(static_cast<c10::StorageImpl*>(lent));
  if (storage.use_count() == 1) return;
  storage->set_data_ptr_noswap({nullptr, storage->device()});
  storage->set_nbytes(0);
}

}  // namespace anyop::glue
