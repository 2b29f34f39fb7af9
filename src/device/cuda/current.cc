// SPDX-License-Identifier: Apache-2.0
// Changes the current device by the driver's contexts. cudaSetDevice would make a context (hundreds
// of megabytes) on the device that a thread merely points to, when it goes back there.
#include <cuda.h>

#include <atomic>
#include <mutex>

#include "status.h"

namespace anyop::cuda {
namespace {

constexpr int kMaxDevices = 64;

// The driver's functions, found through the runtime: nothing links libcuda.
struct Driver {
  decltype(&cuCtxGetCurrent) get_current = nullptr;
  decltype(&cuCtxSetCurrent) set_current = nullptr;
  decltype(&cuDevicePrimaryCtxRetain) retain = nullptr;
  decltype(&cuGetErrorString) error_text = nullptr;

  bool Find() {
    return Find("cuCtxGetCurrent", &get_current) && Find("cuCtxSetCurrent", &set_current) &&
           Find("cuDevicePrimaryCtxRetain", &retain) && Find("cuGetErrorString", &error_text);
  }

 private:
  // 11000: all four are older than that; the version only picks among forms of a function.
  template <typename Function>
  static bool Find(const char* name, Function* function) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion(name, &found, 11000, cudaEnableDefault, &result);
#else
    const cudaError_t error = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result);
#endif
    *function = reinterpret_cast<Function>(found);
    return error == cudaSuccess && found;
  }
};

const Driver* FindDriver() {
  static const Driver* driver = []() -> const Driver* {
    auto* found = new Driver;  // kept: threads may outlive main
    return found->Find() ? found : nullptr;
  }();
  return driver;
}

int32_t CheckDriver(const Driver& driver, CUresult result, const char* doing) {
  if (result == CUDA_SUCCESS) return kAnyopOk;
  const char* text = "an unknown error";
  (void)driver.error_text(result, &text);
  return RefuseOnDevice(kAnyopDeviceError, "CUDA's driver says \"%s\" while %s", text, doing);
}

// Retained once and never released: kernels may be in flight until the process ends.
int32_t PrimaryContext(const Driver& driver, int device, CUcontext* context) {
  static std::atomic<CUcontext> contexts[kMaxDevices];
  static std::mutex lock;
  *context = contexts[device].load(std::memory_order_acquire);
  if (*context) return kAnyopOk;
  std::lock_guard<std::mutex> guard(lock);
  if ((*context = contexts[device].load())) return kAnyopOk;
  if (int32_t status = CheckDriver(driver, driver.retain(context, device), "opening a device"))
    return status;
  contexts[device].store(*context, std::memory_order_release);
  return kAnyopOk;
}

int32_t Change(int device, AnyopDeviceScope* scope) {
  int count = 0;
  if (int32_t status = Check(cudaGetDeviceCount(&count), "counting devices")) return status;
  if (device < 0 || device >= count || device >= kMaxDevices) {
    return RefuseOnDevice(kAnyopDeviceError, "there is no CUDA device %d; this process sees %d",
                          device, count);
  }
  const Driver* driver = FindDriver();
  if (!driver) return RefuseOnDevice(kAnyopDeviceError, "CUDA's driver lacks functions of CUDA 11");
  CUcontext wanted, previous;
  if (int32_t status = PrimaryContext(*driver, device, &wanted)) return status;
  if (int32_t status =
          CheckDriver(*driver, driver->get_current(&previous), "asking for the device"))
    return status;
  if (int32_t status = CheckDriver(*driver, driver->set_current(wanted), "changing the device"))
    return status;
  *scope = {previous, 1, 0};
  return kAnyopOk;
}

// Without one there is nothing to enter. A kernel of the runtime's says so when it starts; one that
// brings its own way to a device, such as a library of tvm-ffi, may know one.
bool HasDriver() {
  int version = 0;
  return cudaDriverGetVersion(&version) == cudaSuccess && version > 0;
}

}  // namespace

int32_t Enter(int32_t device, AnyopDeviceScope* scope) {
  *scope = {};
  int current = -1;
  const cudaError_t error = cudaGetDevice(&current);
  if (error == cudaErrorInsufficientDriver && !HasDriver()) {
    (void)cudaGetLastError();
    return kAnyopOk;
  }
  if (int32_t status = Check(error, "asking for the device")) return status;
  return __builtin_expect(current == device, 1) ? int32_t{kAnyopOk} : Change(device, scope);
}

int32_t Leave(const AnyopDeviceScope* scope) {
  if (!scope->changed) return kAnyopOk;
  const Driver* driver = FindDriver();
  return CheckDriver(*driver, driver->set_current(static_cast<CUcontext>(scope->previous)),
                     "going back to the device that was current");
}

}  // namespace anyop::cuda
