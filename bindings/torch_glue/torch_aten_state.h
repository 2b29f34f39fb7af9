// SPDX-License-Identifier: Apache-2.0
// What of the thread's state a call replaces, and puts back whatever happens. Part of
// torch_aten_glue.cc.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdio>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "torch_aten_glue.h"
#include "torch_stream_state.h"

namespace at::detail {  // of ATen/CPUGeneratorImpl.h
TORCH_API Generator createCPUGenerator(uint64_t seed_val);
}

namespace anyop::glue {

// Python's handler would want its lock. Each text once, then silence.
class WarnOnce : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (told_.size() < 256 && told_.insert(warning.msg()).second)
      std::fprintf(stderr, "torch: %s\n", warning.msg().c_str());
  }

 private:
  std::mutex mutex_;
  std::set<std::string> told_;
};

inline c10::WarningHandler* Warnings() {
  static auto* handler = new WarnOnce;  // never freed: a thread may outlive the library's statics
  return handler;
}

// Plain kernels and nothing else: no gradients, autocast, modes, transforms, tracers. The keys are
// replaced as a whole, so that a mode of a later torch is off, too.
class PlainState {
 public:
  PlainState()
      : keys_(c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
              c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
                  c10::python_ks),  // detached copies ask the thread's mode unless it is excluded
        warnings_(Warnings()),
        autograd_(c10::AutogradState::get_tls_state()),
        grad_(autograd_.get_grad_mode()),
        inference_(autograd_.get_inference_mode()) {
    autograd_.set_grad_mode(false);
    autograd_.set_inference_mode(false);  // results are to be everybody's
  }
  ~PlainState() {
    autograd_.set_grad_mode(grad_);
    autograd_.set_inference_mode(inference_);
  }
  bool was_inference() const { return inference_; }
  PlainState(const PlainState&) = delete;
  PlainState& operator=(const PlainState&) = delete;

 private:
  c10::impl::ForceDispatchKeyGuard keys_;
  c10::WarningUtils::WarningHandlerGuard warnings_;
  c10::AutogradState& autograd_;  // this thread's
  const bool grad_, inference_;
};

// A Generator of its own; the default one keeps its state.
inline at::Generator SeededGenerator(c10::Device device, uint64_t seed) {
  if (device.type() != c10::DeviceType::CUDA && device.type() != c10::DeviceType::PrivateUse1)
    return at::detail::createCPUGenerator(seed);
  const at::AcceleratorHooksInterface& hooks =
      device.type() == c10::DeviceType::CUDA
          ? static_cast<const at::AcceleratorHooksInterface&>(at::detail::getCUDAHooks())
          : at::detail::getPrivateUse1Hooks();
  at::Generator usual = hooks.getDefaultGenerator(device.index());
  at::Generator made = [&] {
    const std::lock_guard<std::mutex> lock(usual.mutex());
    return usual.clone();
  }();
  made.set_current_seed(seed);
  return made;
}

}  // namespace anyop::glue
