// SPDX-License-Identifier: Apache-2.0
// What the typed functions of anyop/ops.h stand on: C++ values as AnyopValues, one call.
#ifndef ANYOP_INVOKE_H_
#define ANYOP_INVOKE_H_

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "anyop/held.h"
#include "anyop/tensor.h"

namespace anyop {

// A handle for calls that come again with the same lists: what was checked in the call before is
// not checked again (anyop/held.h). Of its own type for each operator that takes lists, and called
// as its function: HeldMultiTensorAdam adam; adam(p, g, m, v, lr, step). Threads may share one.
class Held {
 public:
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  AnyopHeld* get() const { return held_; }

 protected:
  explicit Held(const char* name) {
    const AnyopOperator* op = AnyopFindOperator(name);
    if (!op) throw Error(kAnyopValueError, AnyopLastError());
    internal::Check(AnyopNewHeld(op, &held_));
  }
  ~Held() { AnyopDeleteHeld(held_); }

 private:
  AnyopHeld* held_ = nullptr;
};

namespace internal {

// An argument as AnyopValue. It points into the value it was made from, and may hold memory of its
// own, so it is never copied.
template <typename T>
struct Argument;

struct ArgumentBase {
  ArgumentBase() = default;
  ArgumentBase(const ArgumentBase&) = delete;
  ArgumentBase& operator=(const ArgumentBase&) = delete;
  AnyopValue value = {};
};

struct IntArgument : ArgumentBase {
  explicit IntArgument(int64_t i) { value.kind = kAnyopIntValue, value.as.i = i; }
};

template <>
struct Argument<int64_t> : IntArgument {
  using IntArgument::IntArgument;
};

template <>
struct Argument<bool> : IntArgument {
  using IntArgument::IntArgument;
};

template <>
struct Argument<AnyopDtype> : IntArgument {
  using IntArgument::IntArgument;
};

template <>
struct Argument<double> : ArgumentBase {
  explicit Argument(double f) { value.kind = kAnyopFloatValue, value.as.f = f; }
};

inline const char* TextOf(const std::string& text) {
  if (text.find('\0') == std::string::npos) return text.c_str();
  throw Error(kAnyopValueError, "found a string with a NUL character, expected text");
}

template <>
struct Argument<std::string> : ArgumentBase {
  explicit Argument(const std::string& text) {
    value.kind = kAnyopStringValue, value.as.s = TextOf(text);
  }
};

template <>
struct Argument<Tensor> : ArgumentBase {
  explicit Argument(const Tensor& tensor) {
    if (tensor) value.kind = kAnyopTensorValue, value.as.tensor = tensor.get();
  }
};

template <typename T>
struct Argument<std::optional<T>> : ArgumentBase {
  explicit Argument(const std::optional<T>& given) {
    if (given) value = held.emplace(*given).value;
  }
  std::optional<Argument<T>> held;
};

// An empty list is no None: it points somewhere.
template <typename T>
const T* NeverNull(const std::vector<T>& list) {
  static const T kNothing = {};
  return list.empty() ? &kNothing : list.data();
}

template <>
struct Argument<std::vector<int64_t>> : ArgumentBase {
  explicit Argument(const std::vector<int64_t>& list) {
    value.kind = kAnyopIntsValue;
    value.as.ints = {NeverNull(list), static_cast<int64_t>(list.size())};
  }
};

template <>
struct Argument<std::vector<double>> : ArgumentBase {
  explicit Argument(const std::vector<double>& list) {
    value.kind = kAnyopFloatsValue;
    value.as.floats = {NeverNull(list), static_cast<int64_t>(list.size())};
  }
};

struct WidenedArgument : ArgumentBase {
  template <typename T>
  explicit WidenedArgument(const std::vector<T>& list) : held(list.begin(), list.end()) {
    value.kind = kAnyopIntsValue;
    value.as.ints = {NeverNull(held), static_cast<int64_t>(held.size())};
  }
  const std::vector<int64_t> held;
};

template <>
struct Argument<std::vector<bool>> : WidenedArgument {
  using WidenedArgument::WidenedArgument;
};

template <>
struct Argument<std::vector<AnyopDtype>> : WidenedArgument {
  using WidenedArgument::WidenedArgument;
};

template <>
struct Argument<std::vector<std::string>> : ArgumentBase {
  explicit Argument(const std::vector<std::string>& list) {
    for (const std::string& text : list) {
      held.push_back({TextOf(text), static_cast<int64_t>(text.size())});
    }
    value.kind = kAnyopStringsValue;
    value.as.strings = {NeverNull(held), static_cast<int64_t>(held.size())};
  }
  std::vector<AnyopString> held;
};

struct TensorsArgument : ArgumentBase {
  void Finish() {
    value.kind = kAnyopTensorsValue;
    value.as.tensors = {NeverNull(held), static_cast<int64_t>(held.size())};
  }
  std::vector<AnyopTensor> held;
};

template <>
struct Argument<std::vector<Tensor>> : TensorsArgument {
  explicit Argument(const std::vector<Tensor>& list) {
    for (const Tensor& tensor : list) {
      if (!tensor) throw Error(kAnyopValueError, "found none in a list, expected a tensor");
      held.push_back(*tensor.get());
    }
    Finish();
  }
};

template <>
struct Argument<std::vector<std::optional<Tensor>>> : TensorsArgument {
  explicit Argument(const std::vector<std::optional<Tensor>>& list) {
    AnyopTensor absent = {};
    absent.ndim = -1;
    for (const auto& tensor : list) held.push_back(tensor && *tensor ? *tensor->get() : absent);
    Finish();
  }
};

// A result: without a value it is not wanted, without a tensor it is made.
using Result = std::optional<Tensor>;

inline const AnyopOperator* FindOperator(const char* name) {
  const AnyopOperator* found = AnyopFindOperator(name);
  if (!found) throw Error(kAnyopValueError, AnyopLastError());
  return found;
}

inline int32_t InvokeAny(const AnyopOperator* op, AnyopValue* values, int32_t count,
                         const AnyopInvokeOptions* options) {
  return AnyopInvoke(op, values, count, options);
}
inline int32_t InvokeAny(const Held& held, AnyopValue* values, int32_t count,
                         const AnyopInvokeOptions* options) {
  return AnyopInvokeHeld(held.get(), values, count, options);
}

// Calls an operator, or a handle of one, and returns its results, those that were given among them.
template <size_t kResults, typename Target, typename... T>
std::array<Tensor, kResults> Invoke(const Target& target, void* stream,
                                    const std::array<Result, kResults>& results,
                                    const T&... arguments) {
  const std::tuple<Argument<T>...> held(arguments...);
  std::array<AnyopValue, sizeof...(T) + kResults> values = {};
  size_t at = 0;
  std::apply([&](const auto&... argument) { ((values[at++] = argument.value), ...); }, held);
  for (const Result& result : results) {
    if (result) values[at].kind = kAnyopTensorValue, values[at].as.tensor = result->get();
    ++at;
  }
  const AnyopInvokeOptions options = {
      sizeof(AnyopInvokeOptions), 0, stream, nullptr, nullptr, nullptr};
  Check(InvokeAny(target, values.data(), static_cast<int32_t>(values.size()), &options));
  std::array<Tensor, kResults> made;
  for (size_t i = 0; i < kResults; ++i) {
    const AnyopValue& value = values[sizeof...(T) + i];
    if (results[i]) made[i] = *results[i] ? *results[i] : Tensor::Adopt(value.as.tensor);
  }
  return made;
}

}  // namespace internal
}  // namespace anyop

#endif  // ANYOP_INVOKE_H_
