// SPDX-License-Identifier: Apache-2.0
// What tensors of torch's are for operators: dtypes, and where their memory is.
#pragma once

#include <anyop/anyop.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace anyop::torch_device {

struct Dtype {
  c10::ScalarType torch;
  AnyopDtype anyop;
  uint8_t code, bits;  // DLPack's
};
// Null where operators have no such dtype, or torch has none.
const Dtype* FindDtype(c10::ScalarType type);
const Dtype* FindDtype(AnyopDtype type);

// Where the tensors of a call are, for torch and for the operator.
struct Place {
  c10::Device device = c10::kCPU;
  int32_t type = 1, index = 0;  // DLDevice
  void* stream = nullptr;
};

// Of a device now, with its current stream, which of the device itself the core asks. Throws where
// operators have no kernels.
Place PlaceOf(c10::Device device);

// Whose kernels torch runs on tensors of a device: c10::kCPU, c10::kCUDA; kMeta where another's.
c10::DeviceType DeviceBelow(c10::Device device);

class Platform;
// Tells the core whose kernels take the memory of a platform that is about to be used.
void TellWhatIsBelow(const Platform& chosen);

}  // namespace anyop::torch_device
