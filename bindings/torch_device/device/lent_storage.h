// SPDX-License-Identifier: Apache-2.0
// The memory of one storage under the label of another device.
#pragma once

#include <c10/core/StorageImpl.h>

#include "device/device_guard.h"

namespace anyop::torch_device {

// Keeps the other storage alive. Its data has no context, which owns nothing, and the deleter of
// the allocator it came from, by which that knows memory to record streams on.
class LentStorage final : public c10::StorageImpl {
 public:
  LentStorage(c10::Storage of, c10::Device label)
      : StorageImpl(use_byte_size_t(), of.nbytes(),
                    c10::DataPtr(of.mutable_data(), nullptr, of.data_ptr().get_deleter(), label),
                    label.is_privateuseone() ? DeviceAllocator() : nullptr,
                    /*resizable=*/label.is_privateuseone()),
        outer(std::move(of)) {}
  void release_resources() override {
    StorageImpl::release_resources();
    outer = {};
  }

  c10::Storage outer;
};

}  // namespace anyop::torch_device
