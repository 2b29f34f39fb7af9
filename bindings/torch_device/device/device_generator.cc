// SPDX-License-Identifier: Apache-2.0
// Makes a device's generators; the default ones live as long as the process.
#include "device/device_generator.h"

#include <vector>

namespace anyop::torch_device {

Generator::Generator(DeviceIndex index, at::Generator inner)
    : c10::GeneratorImpl(Outer(index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      inner(std::move(inner)) {}

at::Generator NewGenerator(DeviceIndex index) {
  index = OrCurrent(index);
  CheckIndex(index);
  return at::make_generator<Generator>(index, Use()->NewGenerator(index, false));
}

const at::Generator& DefaultGenerator(DeviceIndex index) {
  static const auto* all = [] {
    auto* made = new std::vector<at::Generator>();
    for (DeviceIndex i = 0; i < Use()->Count(); ++i)
      made->push_back(at::make_generator<Generator>(i, Use()->NewGenerator(i, true)));
    return made;
  }();
  index = OrCurrent(index);
  CheckIndex(index);
  return (*all)[index];
}

at::Generator InnerGenerator(const std::optional<at::Generator>& given, DeviceIndex index) {
  const at::Generator& generator =
      given.has_value() && given->defined() ? *given : DefaultGenerator(index);
  if (generator.device().type() != kOuter) {
    TORCH_CHECK(false, "Expected a '", Outer(index), "' device type for generator but found '",
                generator.device(), "'");
  }
  return static_cast<Generator*>(generator.unsafeGetGeneratorImpl())->inner;
}

}  // namespace anyop::torch_device
