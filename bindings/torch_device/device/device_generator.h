// SPDX-License-Identifier: Apache-2.0
// Random numbers of a device: a generator of the device around one of the inner device, which the
// kernels get.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include "platform/platform.h"

namespace anyop::torch_device {

class Generator final : public c10::GeneratorImpl {
 public:
  Generator(DeviceIndex index, at::Generator inner);

  at::Generator inner;

  void set_current_seed(uint64_t seed) override { inner.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { inner.set_offset(offset); }
  uint64_t get_offset() const override { return inner.get_offset(); }
  uint64_t current_seed() const override { return inner.current_seed(); }
  uint64_t seed() override { return inner.unsafeGetGeneratorImpl()->seed(); }
  void set_state(const c10::TensorImpl& state) override {
    inner.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return inner.unsafeGetGeneratorImpl()->get_state();
  }

 private:
  Generator* clone_impl() const override { return new Generator(device().index(), inner.clone()); }
};

at::Generator NewGenerator(DeviceIndex index);
const at::Generator& DefaultGenerator(DeviceIndex index);

// The inner device's generator: of the given one, or of the device's default when there is none.
at::Generator InnerGenerator(const std::optional<at::Generator>& given, DeviceIndex index);

}  // namespace anyop::torch_device
