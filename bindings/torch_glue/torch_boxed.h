// SPDX-License-Identifier: Apache-2.0
// Kernels in torch's dispatcher that read its stack where it lies. torch's C shim makes a handle of
// each tensor and a block of each optional, which is a twentieth of a small call.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <bit>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "torch_glue.h"

namespace anyop::glue {

class Boxed final : public c10::OperatorKernel {
 public:
  explicit Boxed(const AnyopTorchBoxed& kernel)
      : run_(kernel.run),
        failed_(kernel.failed),
        context_(kernel.context),
        kinds_(kernel.kinds),
        num_results_(kernel.num_results),
        recorded_(kernel.name, kernel.recorded) {}

  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const size_t count = kinds_.size();
    const c10::IValue* given = stack->data() + (stack->size() - count);
    uint64_t values[ANYOP_TORCH_MOST_VALUES];
    Held held[ANYOP_TORCH_MOST_VALUES];
    for (size_t i = 0; i < count; ++i) values[i] = Read(kinds_[i], given[i], &held[i]);
    void* results[ANYOP_TORCH_MOST_VALUES];
    if (__builtin_expect(run_(context_, values, count, results), 0)) return Record(stack);
    stack->erase(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
    for (uint32_t o = 0; o < num_results_; ++o) Push(stack, results[o]);
  }

 private:
  struct Held {
    uint64_t inner;  // of an optional
    AnyopTorchText text;
  };

  static uint64_t Address(const void* at) { return reinterpret_cast<uintptr_t>(at); }

  [[gnu::always_inline]] static uint64_t Read(char kind, const c10::IValue& value, Held* held) {
    if (kind >= 'a') return ReadGiven(kind, value, held);
    if (value.isNone()) return 0;
    held->inner = ReadGiven(static_cast<char>(kind | 32), value, held);
    return Address(&held->inner);
  }

  [[gnu::always_inline]] static uint64_t ReadGiven(char kind, const c10::IValue& value,
                                                   Held* held) {
    if (kind == kAnyopTorchTensor) return Address(&value.toTensor());
    if (kind == kAnyopTorchFloat) return std::bit_cast<uint64_t>(value.toDouble());
    if (kind == kAnyopTorchInt) return static_cast<uint64_t>(value.toInt());
    if (kind == kAnyopTorchBool) return value.toBool();
    const std::string& text = value.toStringRef();
    held->text = {text.data(), text.size()};
    return Address(&held->text);
  }

  static void Push(torch::jit::Stack* stack, void* impl) {
    if (!impl) return static_cast<void>(stack->emplace_back());
    stack->emplace_back(at::Tensor(
        c10::intrusive_ptr<c10::TensorImpl>::reclaim(static_cast<c10::TensorImpl*>(impl))));
  }

  // Python's kernel, an overload with the same arguments, which is there by now.
  void Record(torch::jit::Stack* stack) const {
    try {
      c10::Dispatcher::singleton()
          .findSchemaOrThrow(recorded_.name.c_str(), recorded_.overload_name.c_str())
          .callBoxed(stack);
    } catch (const c10::Error& error) {
      failed_(context_, error.what_without_backtrace());
    } catch (const std::exception& error) {
      failed_(context_, error.what());
    }
  }

  AnyopTorchBoxedRun run_;
  void (*failed_)(void* context, const char* why);
  void* context_;
  std::string kinds_;
  uint32_t num_results_;
  c10::OperatorName recorded_;
};

// As operators, it stays for ever.
inline int32_t Implement(const AnyopTorchBoxed* kernel) {
  try {
    static auto* kept = new std::vector<c10::RegistrationHandleRAII>;
    kept->push_back(c10::Dispatcher::singleton().registerImpl(
        {kernel->name, kernel->overload}, c10::parseDispatchKey(kernel->key),
        c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Boxed>(*kernel)), std::nullopt,
        nullptr, "registered by anyop's glue"));
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}

}  // namespace anyop::glue
