// SPDX-License-Identifier: Apache-2.0
// The dtypes that operators have, and what a device of torch's is in DLPack's terms.
#include "native_place.h"

#include <anyop/aten_route.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "plugin_memory.h"

namespace anyop::torch_device {
namespace {

using c10::ScalarType;

constexpr Dtype kDtypes[] = {
    {ScalarType::Bool, kAnyopBool, 6, 8},
    {ScalarType::Byte, kAnyopUInt8, 1, 8},
    {ScalarType::Char, kAnyopInt8, 0, 8},
    {ScalarType::Short, kAnyopInt16, 0, 16},
    {ScalarType::Int, kAnyopInt32, 0, 32},
    {ScalarType::Long, kAnyopInt64, 0, 64},
    {ScalarType::Half, kAnyopFloat16, 2, 16},
    {ScalarType::BFloat16, kAnyopBFloat16, 4, 16},
    {ScalarType::Float, kAnyopFloat32, 2, 32},
    {ScalarType::Double, kAnyopFloat64, 2, 64},
    {ScalarType::ComplexFloat, kAnyopComplex64, 5, 64},
    {ScalarType::ComplexDouble, kAnyopComplex128, 5, 128},
    {ScalarType::Float8_e4m3fn, kAnyopFloat8E4M3FN, 10, 8},
    {ScalarType::Float8_e5m2, kAnyopFloat8E5M2, 12, 8},
    {ScalarType::UInt16, kAnyopUInt16, 1, 16},
    {ScalarType::UInt32, kAnyopUInt32, 1, 32},
    {ScalarType::UInt64, kAnyopUInt64, 1, 64},
};

constexpr int32_t kDlCpu = 1, kDlCuda = 2;

void* CurrentStream(c10::Device device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  const c10::Stream stream = guard.getStream(device);
  if (stream.id() == 0) return nullptr;
#if ANYOP_TORCH_MINOR >= 10
  return guard.getStreamNativeHandle(stream);
#else
  TORCH_CHECK_NOT_IMPLEMENTED(false, "this torch does not tell the handle of a side stream");
#endif
}

void* OuterStream(DeviceIndex index) {
  return platform->StreamHandle(index, platform->Stream(index));
}

Place OnPlugin(c10::Device device) {
  return {device, plugin->device_type, device.index(), OuterStream(device.index())};
}

}  // namespace

const Dtype* FindDtype(ScalarType type) {
  for (const Dtype& dtype : kDtypes)
    if (dtype.torch == type) return &dtype;
  return nullptr;
}

const Dtype* FindDtype(AnyopDtype type) {
  for (const Dtype& dtype : kDtypes)
    if (dtype.anyop == type) return &dtype;
  return nullptr;
}

Place PlaceOf(c10::Device device) {
  if (device.type() == c10::kCPU) return {device, kDlCpu, 0, nullptr};
  if (device.type() == c10::kCUDA) return {device, kDlCuda, device.index(), CurrentStream(device)};
  TORCH_CHECK_NOT_IMPLEMENTED(device.type() == kOuter, "operators have no kernels for ", device);
  if (platform->inner == c10::kCUDA)
    return {device, kDlCuda, device.index(), OuterStream(device.index())};
  if (!platform->boxed) return OnPlugin(device);
  platform->Drain(device.index());
  return {device, kDlCpu, 0, nullptr};
}

std::optional<Place> PluginPlaceOf(c10::Device device, const AnyopOperator* op) {
  const bool both = device.type() == kOuter && platform->inner == c10::kCPU && platform->boxed;
  // The host's own kernels are the CPU's; others of its DLDeviceType are not made for its streams.
  if (!both || platform->name == "host" || !AnyopHasKernel(op, plugin->device_type)) return {};
  return OnPlugin(device);
}

}  // namespace anyop::torch_device
