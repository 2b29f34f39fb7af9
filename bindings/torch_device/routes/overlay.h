// SPDX-License-Identifier: Apache-2.0
// Routes for tensors of the CPU and of CUDA: a kernel over torch's own for each chosen overload,
// while an overlay is on.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "routes/overload.h"

namespace anyop::torch_device {

// An overload of a device that torch knows, under overlays or after them; never freed, as calls may
// be in it.
class Overlaid {
 public:
  Overlaid(std::string device, c10::DispatchKey key) : device(std::move(device)), key(key) {}

  void RunOriginal(const c10::OperatorHandle& op, torch::jit::Stack* stack) const {
    original.callBoxed(op, c10::DispatchKeySet(key), stack);
  }
  // The route of the latest overlay that names one; "": rules say it.
  std::string Said() const;

  const std::string device;  // "cpu", "cuda"
  const c10::DispatchKey key;
  c10::KernelFunction original;
  c10::KernelFunction ours;
  c10::BoxedKernel routed;  // what the unboxed ones do with a call that is looked at
  std::optional<c10::impl::CppSignature> signature;
  std::vector<std::pair<int64_t, std::string>> overlays;  // those that are on, and what they say
  std::optional<c10::RegistrationHandleRAII> registered;
};

// overlay_kernels.cc: makes the kernel of an overload, once; registers it over torch's, until
// `registered` is reset.
void MakeKernel(Overload* overload, Overlaid* overlaid);
void LayOver(Overload* overload, Overlaid* overlaid);

// Lays the routes over overloads ("mm", "add": all of add's, none: all that a rule names) of a
// device; its number. Throws on what is unknown, and then nothing is done.
int64_t TurnOverlayOn(const std::vector<std::string>& ops, const std::string& device,
                      const std::string& route);
// Torch's own kernels are registered as before once no overlay is on. An unknown number is no
// error.
void TurnOverlayOff(int64_t number);

// After routes changed, without a lock of routes.cc.
void AdjustOverlays();

// Those under overlays now.
std::vector<Overload*> OverlaidOverloads();
Overload* FindOverlaid(const std::string& name, const std::string& device);

}  // namespace anyop::torch_device
