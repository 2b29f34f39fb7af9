// SPDX-License-Identifier: Apache-2.0
// The kernel of every overload on the device: one function for all, driven by the overload's facts.
#pragma once

#include <ATen/core/stack.h>

#include "routes/overload.h"

namespace anyop::torch_device {

// Runs a kernel of the inner device on the arguments on the stack, which results replace. The
// callee has the arguments of the overload: it, or a backend in Python.
void RunBoxed(const Overload& overload, const c10::OperatorHandle& callee,
              torch::jit::Stack* stack);

// Asks the overload's route who runs; says so to who listens.
void RunRouted(Overload& overload, torch::jit::Stack* stack);

// What the dispatcher calls.
class BoxedKernel final : public c10::OperatorKernel {
 public:
  explicit BoxedKernel(Overload* overload) : overload_(overload) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    if (overload_->attention.load(std::memory_order_relaxed)) [[unlikely]]
      RunRouted(*overload_, stack);
    else
      RunBoxed(*overload_, overload_->op, stack);
  }

 private:
  Overload* overload_;
};

}  // namespace anyop::torch_device
