// SPDX-License-Identifier: Apache-2.0
// One kernel for each C++ signature: wraps the arguments, calls the inner device's kernel through a
// typed handle, takes the result over.
#include "kernels/unboxed.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/SmallVector.h>

#include "device/device_generator.h"
#include "kernels/boxed.h"
#include "kernels/wrappers.h"
#include "routes/signatures.h"

namespace anyop::torch_device {
namespace {

using at::Tensor;
using signatures::OptionalTensor;
using std::optional;

// An argument as the kernel gets it.
const Tensor& Wrap(Call& call, const Tensor& tensor) { return call.In(tensor); }
Tensor& Wrap(Call& call, Tensor& tensor) { return call.InWritten(tensor); }
OptionalTensor Wrap(Call& call, const OptionalTensor& tensor) {
  return tensor ? OptionalTensor(call.In(*tensor)) : std::nullopt;
}
struct WrappedList {
  c10::SmallVector<Tensor, 4> tensors;
  operator at::ITensorListRef() const { return at::TensorList(tensors); }
  operator at::TensorList() const { return tensors; }
};
template <class List>
WrappedList WrapList(Call& call, const List& list) {
  WrappedList wrapped;
  wrapped.tensors.reserve(list.size());
  for (const Tensor& tensor : list) wrapped.tensors.push_back(call.In(tensor));
  return wrapped;
}
WrappedList Wrap(Call& call, const at::ITensorListRef& list) {
  return list.isUnboxed() ? WrapList(call, list.toUnboxed()) : WrapList(call, list);
}
WrappedList Wrap(Call& call, at::TensorList list) { return WrapList(call, list); }
c10::List<OptionalTensor> Wrap(Call& call, const c10::List<OptionalTensor>& list) {
  c10::List<OptionalTensor> wrapped;
  wrapped.reserve(list.size());
  for (const OptionalTensor& tensor : list)
    wrapped.push_back(tensor ? OptionalTensor(call.InIndex(*tensor)) : std::nullopt);
  return wrapped;
}
optional<at::Generator> Wrap(Call& call, const optional<at::Generator>& generator) {
  return InnerGenerator(generator, call.Index());
}
template <class T>
const T& Wrap(Call&, const T& plain) {
  return plain;
}

Tensor TakeOver(Call& call, Tensor result) { return call.Out(std::move(result)); }
c10::SymInt TakeOver(Call&, c10::SymInt result) { return result; }
template <class... T>
auto TakeOver(Call& call, std::tuple<T...> results) {
  return std::apply(
      [&](auto&... each) { return std::tuple<T...>(TakeOver(call, std::move(each))...); }, results);
}

// The argument that a kernel of this signature returns: the first written one.
template <class First, class... Rest>
Tensor& Written(First& first, Rest&... rest) {
  if constexpr (std::is_same_v<First, Tensor>)
    return first;
  else
    return Written(rest...);
}

template <class Signature>
class Unboxed;

template <class R, class... A>
class Unboxed<R(A...)> {
 public:
  explicit Unboxed(Overload* overload) : overload_(overload), op_(overload->op.typed<R(A...)>()) {}

  R operator()(A... arguments) const {
    if (overload_->attention.load(std::memory_order_relaxed)) [[unlikely]]
      return Routed(std::forward<A>(arguments)...);
    const at::AutoDispatchBelowADInplaceOrView below;
    Call call(*overload_);
    // Braces: in order, so that a generator knows the device of the tensors before it.
    std::tuple<decltype(Wrap(call, arguments))...> in{Wrap(call, arguments)...};
    call.Ready();
    const auto run = [&](auto&&... each) -> R {
      return op_.redispatch(platform->inner_keys, std::forward<decltype(each)>(each)...);
    };
    if constexpr (std::is_same_v<R, Tensor&>) {
      std::apply(run, in);
      call.Finish();
      return Written(AsWritten<A>(arguments)...);
    } else {
      return TakeOver(call, std::apply(run, in));
    }
  }

 private:
  // Tensor& is a written argument; all others are made const, for Written to pass over.
  template <class T>
  static decltype(auto) AsWritten(std::remove_reference_t<T>& argument) {
    if constexpr (std::is_same_v<T, Tensor&>)
      return static_cast<Tensor&>(argument);
    else
      return static_cast<const std::remove_reference_t<T>&>(argument);
  }

  R Routed(A... arguments) const {
    using Wrapper = c10::impl::BoxedKernelWrapper<R(A...)>;
    return Wrapper::call(boxed_, overload_->op, c10::DispatchKeySet(),
                         std::forward<A>(arguments)...);
  }

  Overload* overload_;
  c10::TypedOperatorHandle<R(A...)> op_;
  c10::BoxedKernel boxed_ =
      c10::BoxedKernel::makeFromFunctor(std::make_unique<BoxedKernel>(overload_));
};

struct Maker {
  template <class R, class... A>
  static void Make(Overload* overload, torch::Library* library) {
    library->impl(overload->name.c_str(),
                  torch::CppFunction([kernel = Unboxed<R(A...)>(overload)](A... arguments) -> R {
                    return kernel(std::forward<A>(arguments)...);
                  }));
  }
};

}  // namespace

bool RegisterUnboxed(Overload* overload, torch::Library* library) {
  return signatures::Table<Maker>::Get().Find(overload->op.schema(),
                                              [&](auto make) { make(overload, library); });
}

}  // namespace anyop::torch_device
