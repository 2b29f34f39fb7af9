// SPDX-License-Identifier: Apache-2.0
// Walks all overloads of the loaded torch and registers a kernel of the device for each that the
// inner device has one for.
#include "device/start.h"

#include <ATen/Context.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <cstdlib>
#include <mutex>

#include "device/device_guard.h"
#include "device/engine_queues.h"
#include "kernels/attention.h"
#include "kernels/boxed.h"
#include "kernels/collectives.h"
#include "kernels/dropout.h"
#include "kernels/own_kernels.h"
#include "kernels/recurrent.h"
#include "kernels/unboxed.h"
#include "platform/platform.h"
#include "routes/native_place.h"
#include "routes/routes.h"

namespace anyop::torch_device {
namespace {

using c10::DispatchKey;

std::mutex start_mutex;
bool is_claimed = false;
int64_t registered = 0;

torch::Library* NewLibrary(DispatchKey key) {
  return new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
}

// Composites of torch that must stay whole: split up, they take other kernels than on the inner
// device, or no operator of anyop's can stand for them.
bool IsWholeComposite(const std::string& name) {
  return name == "convolution" || name == "convolution_backward" || name == "embedding" ||
         name == "_grouped_mm" || name == "mode.values" || name == "conj_physical_";
}

bool Takes(const c10::OperatorHandle& op, const std::string& name) {
  if (IsOwnKernel(name) || op.hasKernelForDispatchKey(DispatchKey::PrivateUse1)) return false;
  const auto key = platform->inner == c10::DeviceType::CPU ? DispatchKey::CPU : DispatchKey::CUDA;
  return op.hasKernelForDispatchKey(key) || IsWholeComposite(name);
}

void RegisterOverload(const c10::OperatorHandle& op, torch::Library* library) {
  Overload* overload = MakeOverload(op);
  if (!RegisterUnboxed(overload, library)) {
    library->impl(overload->name.c_str(), torch::CppFunction::makeFromBoxedFunctor(
                                              std::make_unique<BoxedKernel>(overload)));
  }
  ++registered;
}

// Torch 2.9 has one for every kind of device but this: operators without a gradient would not run.
void RegisterAutogradFallback() {
  const DispatchKey key = DispatchKey::AutogradPrivateUse1;
  if (c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(key)) return;
  static auto* library = new torch::Library(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
  library->fallback(torch::autograd::basicAutogradNotImplementedFallback());
}

void RegisterAll() {
  torch::Library* library = NewLibrary(DispatchKey::PrivateUse1);
  torch::Library* autograd = NewLibrary(DispatchKey::AutogradPrivateUse1);
  RegisterAutogradFallback();
  RegisterOwnKernels(library);
  RegisterAttention(library, autograd);
  if (platform->inner == c10::DeviceType::CPU) {
    RegisterRecurrent(library, autograd);
    RegisterDropout(library);
  }
  RegisterAutocast();
  RegisterCollectives();
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& op_name : dispatcher.getAllOpNames()) {
    if (op_name.name.rfind("aten::", 0) != 0) continue;
    const auto op = dispatcher.findSchema(op_name);
    if (op && Takes(*op, c10::toString(op_name).substr(6))) RegisterOverload(*op, library);
  }
}

std::string DefaultPlatform() {
  const char* wanted = std::getenv("ANYOP_DEVICE_PLATFORM");
  if (wanted && *wanted) return wanted;
  return at::globalContext().hasCUDA() && at::detail::getCUDAHooks().deviceCount() > 0 ? "cuda"
                                                                                       : "host";
}

}  // namespace

void ChoosePlatform(const std::string& name) {
  static std::mutex choosing;
  const std::lock_guard lock(choosing);
  if (platform) {
    TORCH_CHECK(name.empty() || name == platform->name, "the device runs on ", platform->name,
                " already, and cannot change to ", name);
    return;
  }
  const std::string chosen = name.empty() ? DefaultPlatform() : name;
  std::unique_ptr<Platform> made = chosen == "cuda" ? CudaPlatform() : PluginPlatform(chosen);
  TellWhatIsBelow(*made);
  platform = made.release();
}

void Claim() {
  const std::lock_guard lock(start_mutex);
  if (is_claimed) return;
  TORCH_CHECK(!IsTaken(),
              "another backend has PyTorch's device PrivateUse1 in this process; "
              "anyop.torch.overlay works beside it");
  RegisterDevice();
  is_claimed = true;
}

int64_t Start(const std::string& platform_name) {
  Claim();
  ChoosePlatform(platform_name);
  // Pinned memory torch may take from CUDA's allocator, and asks the device about it only then.
  if (platform->inner == c10::DeviceType::CUDA) at::globalContext().lazyInitDevice(kOuter);
  const std::lock_guard lock(start_mutex);
  if (registered == 0) {
    RegisterAll();
    StartRoutes();
    AddEngineQueues();
  }
  return registered;
}

}  // namespace anyop::torch_device
