// SPDX-License-Identifier: Apache-2.0
// One overload of ATen's on the device: its schema as calls need it, and its route.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

namespace anyop::torch_device {

enum class ArgumentKind : uint8_t {
  kPlain,
  kTensor,
  kTensorList,
  kOptionalTensorList,
  kDevice,
  kGenerator,
};

inline bool IsWritten(const c10::Argument& argument) {
  return argument.alias_info() && argument.alias_info()->isWrite();
}

struct ArgumentFacts {
  ArgumentKind kind = ArgumentKind::kPlain;
  bool written = false;
};

// How a call may run. Boxed, the backend "aten", is torch's kernel of the inner device on the same
// memory.
enum class RouteKind : uint8_t { kBoxed, kNative, kCpuFallback, kNone, kPython };
constexpr int kCounted = 4;  // aten, native, cpu_fallback, all others

struct NativeKernel;
class Overlaid;

struct Overload {
  explicit Overload(const c10::OperatorHandle& op);

  c10::OperatorHandle op;
  std::string name;  // "add.Tensor", "mm"
  std::vector<ArgumentFacts> arguments;
  std::vector<int> written_results;  // of each result: the argument that it is, or -1
  bool takes_generator = false;

  // What calls look at first: 0 is aten, with nobody watching.
  std::atomic<uint32_t> attention{0};
  std::atomic<const struct OverloadRoute*> route{nullptr};
  std::atomic<int64_t> calls[kCounted]{};
  const Overlaid* overlaid = nullptr;  // of a device that torch knows; null: of this device
  std::atomic<const std::vector<NativeKernel>*> native{
      nullptr};  // which operators can stand for it
};

// All that the device has a kernel for, by name. Made by FindOverload.
Overload* FindOverload(const std::string& name);
Overload* MakeOverload(const c10::OperatorHandle& op);
std::vector<Overload*> AllOverloads();

}  // namespace anyop::torch_device
