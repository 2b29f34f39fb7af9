// SPDX-License-Identifier: Apache-2.0
// The functions of modules are looked for when the first image comes. Images and kernels stay until
// the process ends.
#include "images.h"

#include <climits>
#include <mutex>

namespace anyop::cuda_like {
namespace {

struct Image {
  Handle module;
  int32_t device;
  std::string name;
};

struct Modules {
  ModuleApi api{};
  std::string problem;
};

const Modules& TheModules() {
  static auto* modules = [] {
    auto* made = new Modules;
    made->problem = FindModules(TheRuntime().row, TheRuntime().library, &made->api);
    return made;
  }();
  return *modules;
}

int32_t Refuse(int32_t status, const std::string& text) {
  return RefuseOnDevice(status, "%s: %s", TheRuntime().name.c_str(), text.c_str());
}

// What a runtime says of an image that has nothing for the device, or no such kernel.
int32_t CheckImage(int32_t status, Code code) {
  return code == kNoBinary || code == kNotFound ? int32_t{kAnyopNotImplemented} : status;
}

std::string Sizes(const int64_t (&sizes)[3]) {
  return std::to_string(sizes[0]) + " x " + std::to_string(sizes[1]) + " x " +
         std::to_string(sizes[2]);
}

bool AreSizes(const int64_t (&sizes)[3]) {
  for (int64_t size : sizes) {
    if (size < 1 || size > INT_MAX) return false;
  }
  return true;
}

}  // namespace

int32_t LoadImage(int32_t device, const AnyopDeviceImage* image, void** loaded) {
  *loaded = nullptr;
  if (int32_t status = CheckDevice(device)) return status;
  const Modules& modules = TheModules();
  if (!modules.problem.empty()) return Refuse(kAnyopNotImplemented, modules.problem);
  if (image->bytes == 0)
    return Refuse(kAnyopValueError, std::string(image->name) + " is empty, and no image");
  Handle module = nullptr;
  Code code = 0;
  const std::string doing = std::string("loading ") + image->name;
  const int32_t status = On(device, doing.c_str(), [&] {
    code = TheApi().Free(nullptr);  // makes the device's context, which a driver's function needs
    return code ? code : code = modules.api.ModuleLoadData(&module, image->data);
  });
  if (status) return CheckImage(status, code);
  *loaded = new Image{module, device, image->name};
  return kAnyopOk;
}

int32_t FindKernel(int32_t device, void* loaded, const char* entry, void** kernel) {
  *kernel = nullptr;
  if (int32_t status = CheckDevice(device)) return status;
  const auto* image = static_cast<const Image*>(loaded);
  if (!image || image->device != device)
    return Refuse(kAnyopValueError, "the image was not loaded on this device");
  Code code = 0;
  const std::string doing = "looking for the kernel " + std::string(entry) + " in " + image->name;
  const int32_t status = On(device, doing.c_str(), [&] {
    return code = TheModules().api.ModuleGetFunction(kernel, image->module, entry);
  });
  return status ? CheckImage(status, code) : status;
}

int32_t LaunchKernel(int32_t device, void* stream, void* kernel, const AnyopDeviceLaunch* launch) {
  if (int32_t status = CheckDevice(device)) return status;
  if (!kernel) return Refuse(kAnyopValueError, "the kernel is NULL");
  if (!AreSizes(launch->grid) || !AreSizes(launch->block) || launch->shared_bytes < 0 ||
      launch->shared_bytes > INT_MAX)
    return Refuse(kAnyopValueError, "a launch of " + Sizes(launch->grid) + " blocks of " +
                                        Sizes(launch->block) + " threads with " +
                                        std::to_string(launch->shared_bytes) +
                                        " bytes, expected sizes of 1 to 2147483647");
  const auto part = [](int64_t size) { return static_cast<unsigned>(size); };
  auto** values = const_cast<void**>(launch->values);  // which are read
  return On(device, "starting a kernel", [&] {
    return TheModules().api.ModuleLaunchKernel(kernel, part(launch->grid[0]), part(launch->grid[1]),
                                               part(launch->grid[2]), part(launch->block[0]),
                                               part(launch->block[1]), part(launch->block[2]),
                                               part(launch->shared_bytes), stream, values, nullptr);
  });
}

}  // namespace anyop::cuda_like
