// SPDX-License-Identifier: Apache-2.0
// The streams of torch's devices, and whose kernels take their memory.
#include "routes/native_place.h"

#include <anyop/device_below.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdio>

#include "platform/plugin_memory.h"

namespace anyop::torch_device {
namespace {

constexpr int32_t kDlCpu = 1, kDlCuda = 2;

// Torch 2.9 tells no handle of a stream; that of CUDA's default stream is known.
void* OuterStream(DeviceIndex index) {
  const c10::StreamId stream = platform->Stream(index);
  return stream == 0 ? nullptr : platform->StreamHandle(index, stream);
}

// AnyopDeviceBelow's.
int32_t Enter(int32_t type, int32_t index, void** stream, char* error, int64_t error_bytes) {
  const auto say = [&](const char* why) {
    std::snprintf(error, static_cast<size_t>(error_bytes), "%s", why);
    return int32_t{kAnyopDeviceError};
  };
  if (index < 0 || index >= platform->Count()) {  // of a tensor that another library made
    std::snprintf(error, static_cast<size_t>(error_bytes), "there is no device %d, only %d", index,
                  platform->Count());
    return kAnyopValueError;
  }
  try {
    const auto device = static_cast<DeviceIndex>(index);
    if (type == kDlCpu)
      platform->Drain(device);
    else
      *stream = OuterStream(device);
    return kAnyopOk;
  } catch (const c10::Error& e) {
    return say(e.what_without_backtrace());
  } catch (const std::exception& e) {
    return say(e.what());
  }
}

}  // namespace

void* StreamOf(c10::Device device) {
  if (device.type() == c10::kCPU || device.type() == kOuter) return nullptr;
  TORCH_CHECK_NOT_IMPLEMENTED(device.type() == c10::kCUDA, "operators have no kernels for ",
                              device);
  const c10::impl::VirtualGuardImpl guard(device.type());
  const c10::Stream stream = guard.getStream(device);
  if (stream.id() == 0) return nullptr;
#if ANYOP_TORCH_MINOR >= 10
  return guard.getStreamNativeHandle(stream);
#else
  TORCH_CHECK_NOT_IMPLEMENTED(false, "this torch does not tell the handle of a side stream");
#endif
}

c10::DeviceType DeviceBelow(c10::Device device) {
  if (device.type() != kOuter) return device.type();
  if (platform->inner == c10::kCUDA) return c10::kCUDA;
  return platform->name == "host" || platform->boxed ? c10::kCPU : c10::kMeta;
}

void TellWhatIsBelow(const Platform& chosen) {
  static AnyopDeviceBelow below = {sizeof below, {}, 0, &Enter};
  if (chosen.inner == c10::kCUDA)
    below.types[0] = kDlCuda;
  else if (chosen.name == "host")  // its kernels are the CPU's
    below.types[0] = kDlCpu;
  else
    below.types[0] = plugin->device_type, below.types[1] = chosen.boxed ? kDlCpu : 0;
  CheckCore(AnyopSetDeviceBelow(&below));
}

}  // namespace anyop::torch_device
